"""Streams are read whole or refused; nothing in between."""

from __future__ import annotations

import errno
import io

import pytest

from tokpipe.corpus import compression
from tokpipe.corpus.compression import TextStream
from tokpipe.errors import UnreadableFileError

DATA = b"".join(b"line %d of some text\n" % (i * i) for i in range(3000))
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"


def read_all(path, num_bytes=1000):
    with TextStream(str(path)) as stream:
        pieces = list(iter(lambda: stream.read(num_bytes), b""))
        assert all(len(piece) == num_bytes for piece in pieces[:-1])
        assert stream.position == sum(map(len, pieces))
        return b"".join(pieces)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
@pytest.mark.parametrize("num_bytes", [1, 1000, 1 << 20])
def test_several_members_are_read_as_one(tmp_path, compress, kind, num_bytes):
    path = tmp_path / "x"
    data = DATA[:2000] if num_bytes == 1 else DATA
    path.write_bytes(compress[kind](data) + compress[kind](b"") + compress[kind](data))
    assert read_all(path, num_bytes) == data + data


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
def test_the_name_says_nothing_about_compression(tmp_path, compress, kind):
    path = tmp_path / "x.txt.gz"
    path.write_bytes(compress[kind](DATA))
    assert read_all(path) == DATA
    path.write_bytes(DATA)
    assert read_all(path) == DATA


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
def test_every_truncation_is_an_error_with_file_and_offset(tmp_path, compress, kind):
    path = tmp_path / "cut.bin"
    one = compress[kind](DATA[:500])
    whole = compress[kind](DATA) + one
    member_end = len(whole) - len(one)
    for keep in [10, 12, 20, member_end - 9, member_end - 4, member_end - 1, member_end + 11, len(whole) - 1, len(whole) - 3]:
        path.write_bytes(whole[:keep])
        with pytest.raises(
            UnreadableFileError, match=r"cut\.bin: its \w+ stream is truncated or damaged at byte [\d,]+ of the file"
        ):
            read_all(path)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
@pytest.mark.parametrize("garbage", [b"garbage behind the end", b"\0" * 64 + b"garbage", b"x"])
def test_garbage_behind_the_end_is_an_error(tmp_path, compress, kind, garbage):
    path = tmp_path / "x.gz"
    whole = compress[kind](DATA)
    path.write_bytes(whole + garbage)
    with pytest.raises(UnreadableFileError) as error:
        read_all(path)
    if kind != "zst":
        assert f"at byte {len(whole) + len(garbage) - len(garbage.lstrip(bytes(1))):,} of" in str(error.value)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("padding", [1, 64, 3 << 20])
def test_zero_padding_behind_the_end_is_legal(tmp_path, compress, kind, padding):
    path = tmp_path / "x"
    path.write_bytes(compress[kind](DATA) + bytes(padding))
    assert read_all(path) == DATA


def test_zstd_skippable_and_empty_frames_hold_nothing(tmp_path, compress):
    path = tmp_path / "x"
    frame = compress["zst"](DATA)
    path.write_bytes(SKIPPABLE + frame + SKIPPABLE + compress["zst"](b"") + frame + SKIPPABLE)
    assert read_all(path) == DATA + DATA
    path.write_bytes(SKIPPABLE)
    assert read_all(path) == b""


def test_a_flipped_bit_in_gzip_is_caught_by_its_checksum(tmp_path, compress):
    path = tmp_path / "x"
    data = bytearray(compress["gz"](DATA))
    data[-8] ^= 1
    path.write_bytes(data)
    with pytest.raises(UnreadableFileError, match="incorrect data check"):
        read_all(path)


@pytest.mark.parametrize("kind", ["", "gz", "bz2", "xz", "zst"])
def test_a_stream_starts_anywhere_and_knows_what_it_consumed(tmp_path, compress, kind):
    path = tmp_path / "x"
    path.write_bytes(compress[kind](DATA) if kind else DATA)
    for start in (0, 1, 1000, len(DATA) - 1, len(DATA), len(DATA) + 5):
        with TextStream(str(path), start=start) as stream:
            assert stream.compression == kind
            assert stream.read(len(DATA)) == DATA[start:]
            assert stream.input_position() >= path.stat().st_size or not kind


def test_text_that_looks_like_bzip2_at_first_is_text(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"BZh9 is how a bzip2 file begins")
    assert read_all(path) == b"BZh9 is how a bzip2 file begins"


def test_a_highly_compressed_stream_comes_in_bounded_pieces(tmp_path, compress):
    path = tmp_path / "x"
    size = 16 << 20
    for kind in ("gz", "zst", "xz", "bz2"):
        path.write_bytes(compress[kind](bytes(size)))
        with TextStream(str(path)) as stream:
            total = 0
            while piece := stream.read(1 << 20):
                assert len(piece) <= 1 << 20
                total += len(piece)
        assert total == size


def test_a_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(UnreadableFileError, match=r"gone\.gz: cannot be opened"):
        TextStream(str(tmp_path / "gone.gz"))


def test_a_disk_that_cannot_be_read_is_an_error_that_names_file_and_offset(tmp_path, monkeypatch):
    class Broken(io.BytesIO):
        def read(self, num_bytes=-1):
            if self.tell() >= 100:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(min(num_bytes, 100))

    monkeypatch.setattr(compression, "open_file", lambda name: Broken(bytes(200)))
    with TextStream("a.txt") as stream, pytest.raises(UnreadableFileError, match=r"a\.txt: cannot be read at byte 100 \("):
        stream.read(200)
