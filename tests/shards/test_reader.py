"""Shard: views that outlive it, lookups by bisection, and every malformation with its own message."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import pickle
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokpipe.errors import MissingShardError, ShardError, ShardFormatError
from tokpipe.shards import Shard, ShardWriter


def open_handles() -> int:
    """File descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def patch(path, offset, value, size=8):
    """Overwrite a little-endian integer in a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value.to_bytes(size, "little", signed=value < 0))


@pytest.fixture
def shard_of_three(write_shard):
    """The specification's example: lengths 3, 2, 1."""
    return write_shard([np.array([5, 300, 2]), np.array([7, 2]), np.array([2])])


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_write_then_read_is_the_identity(write_shard, documents, dtype):
    expected = documents(np.random.default_rng(0), count=200)
    shard = Shard.open(write_shard(expected, dtype=dtype))
    assert len(shard) == shard.num_documents == 200
    assert shard.dtype == dtype
    assert shard.tokens.dtype == np.dtype(dtype)
    assert np.array_equal(shard.tokens, np.concatenate(expected))
    assert all(np.array_equal(shard.document(i), document) for i, document in enumerate(expected))
    assert shard.lengths.tolist() == [len(document) for document in expected]
    assert "200 documents" in repr(shard)


def test_views_are_read_only_and_outlive_the_shard(shard_of_three):
    shard = Shard.open(shard_of_three)
    tokens, document = shard.tokens, shard.document(0)
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1
    shard.release()
    del shard
    gc.collect()
    Path(f"{shard_of_three}.bin").unlink()  # the map keeps the bytes even so
    assert tokens.tolist() == [5, 300, 2, 7, 2, 2]
    assert document.tolist() == [5, 300, 2]


def test_release_closes_the_handles_and_reading_goes_on(shard_of_three):
    handles = open_handles()
    shard = Shard.open(shard_of_three)
    assert open_handles() == handles  # opening keeps none
    assert shard.tokens[0] == 5
    assert shard.document_of_token(3) == 1
    shard.release()
    gc.collect()
    assert open_handles() == handles
    assert shard.document(1).tolist() == [7, 2]


def test_pickle_carries_the_path_alone(shard_of_three):
    shard = Shard.open(shard_of_three)
    assert len(shard.tokens) == 6
    data = pickle.dumps(shard)
    assert len(data) < 500
    assert pickle.loads(data).document(0).tolist() == [5, 300, 2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=30), data=st.data())
def test_lookups_equal_a_plain_search(tmp_path_factory, lengths, data):
    prefix = tmp_path_factory.mktemp("s") / "s"
    with ShardWriter(prefix, dtype=data.draw(st.sampled_from(["uint16", "int32"]))) as writer:
        writer.append(np.zeros(sum(lengths), np.int64), np.concatenate([[0], np.cumsum(lengths)]))
        writer.commit()
    shard = Shard.open(prefix)
    starts = np.cumsum([0, *lengths[:-1]])
    owner = np.repeat(np.arange(len(lengths)), lengths)
    assert [shard.document_of_token(token) for token in range(len(owner))] == owner.tolist()
    start = data.draw(st.integers(0, len(owner)))
    stop = data.draw(st.integers(start, len(owner)))
    found = shard.document_starts(start, stop)
    assert found.dtype == np.int64
    assert found.tolist() == starts[(starts >= start) & (starts < stop)].tolist()


def test_documents_of_one_token_each(write_shard):
    shard = Shard.open(write_shard([np.array([2])] * 20))
    assert shard.document_starts(0, 20).tolist() == list(range(20))
    assert shard.document_starts(5, 6).tolist() == [5]
    assert shard.document_starts(5, 5).tolist() == []


def test_lookups_refuse_what_is_not_there(shard_of_three):
    shard = Shard.open(shard_of_three)
    for token in (-1, 6):
        with pytest.raises(IndexError, match="of 6"):
            shard.document_of_token(token)
    for index in (-1, 3):
        with pytest.raises(IndexError, match="of 3"):
            shard.document(index)
    for start, stop in ((-1, 2), (3, 2), (0, 7)):
        with pytest.raises(IndexError, match="of 6"):
            shard.document_starts(start, stop)


def test_advice_is_taken_for_any_range(shard_of_three):
    shard = Shard.open(shard_of_three)
    shard.advise(mmap.MADV_WILLNEED)
    shard.advise(mmap.MADV_DONTNEED, 2, 4)
    shard.advise(mmap.MADV_DONTNEED, 4, 4)
    assert shard.tokens.tolist() == [5, 300, 2, 7, 2, 2]
    before = shard.document_starts(0, 6).tolist()
    shard.advise(mmap.MADV_DONTNEED)  # the index too, now that it is mapped
    assert shard.document_starts(0, 6).tolist() == before


def test_two_terabytes_open_at_once_and_read_at_both_ends(tmp_path):
    """A sparse shard of 10^12 tokens in 1,000 documents: every offset is 64-bit, and nothing is read through."""
    num_documents, length = 1000, 10**9
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, num_documents, num_documents + 1)
    lengths = np.full(num_documents, length, "<i4").tobytes()
    offsets = (np.arange(num_documents, dtype="<i8") * 2 * length).tobytes()
    (tmp_path / "t.idx").write_bytes(header + lengths + offsets + np.arange(num_documents + 1, dtype="<i8").tobytes())
    with (tmp_path / "t.bin").open("wb") as file:
        file.truncate(2 * 10**12)
        file.seek(2 * 10**12 - 4)
        file.write(b"\x07\x00\x02\x00")
    shard = Shard.open(tmp_path / "t")
    assert shard.num_tokens == 10**12
    assert shard.tokens[-2:].tolist() == [7, 2]
    assert shard.document(999)[-1] == 2
    assert shard.document_of_token(10**12 - 1) == 999
    assert shard.document_starts(10**12 - length - 1, 10**12).tolist() == [999 * length]


# Byte offsets in the index of the example: lengths at 34, 38, 42; byte offsets at 46, 54, 62; document indices at 70 to 94.
@pytest.mark.parametrize(
    ("offset", "value", "size", "message"),
    [
        (0, 0x50, 1, "not a Megatron-style index"),
        (9, 3, 8, "format version 3"),
        (17, 4, 1, "last document starts at byte 10, which no int32 token does"),  # uint16 data labelled int32
        (17, 1, 1, "Megatron's uint8"),
        (18, 2, 8, "2 sequences but 4 document indices"),
        (46, 2, 8, "first document starts at byte 2, expected 0"),
        (62, 11, 8, "last document starts at byte 11, which no uint16 token does"),
        (62, -2, 8, "last document starts at byte -2"),
        (62, 12, 8, "index promises 7 tokens"),
        (42, 0, 4, "last document has 0 tokens"),
        (42, -1, 4, "last document has -1 tokens"),
        (42, 2, 4, "index promises 7 tokens"),
        (70, 1, 8, "document indices run from 1 to 3, expected 0 to 3"),
        (94, 4, 8, "document indices run from 0 to 4, expected 0 to 3"),
    ],
)
def test_open_rejects(shard_of_three, offset, value, size, message):
    idx = shard_of_three.with_name(shard_of_three.name + ".idx")
    patch(idx, offset, value, size)
    with pytest.raises(ShardFormatError, match=message) as caught:
        Shard.open(shard_of_three)
    assert str(shard_of_three) in str(caught.value)


@pytest.mark.parametrize(
    ("cut", "message"), [(0, "holds 0 bytes"), (33, "holds 33 bytes"), (101, "is cut short: holds 101 bytes, 3 doc")]
)
def test_a_truncated_index_is_rejected(shard_of_three, cut, message):
    os.truncate(f"{shard_of_three}.idx", cut)
    with pytest.raises(ShardFormatError, match=message):
        Shard.open(shard_of_three)


def test_bytes_after_the_index_are_rejected(shard_of_three):
    with Path(f"{shard_of_three}.idx").open("ab") as file:
        file.write(b"\0\0\0")
    with pytest.raises(ShardFormatError, match="bytes after its end: holds 105 bytes, 3 documents take 102"):
        Shard.open(shard_of_three)


@pytest.mark.parametrize("size", [0, 11, 13])
def test_a_bin_of_another_size_is_rejected(shard_of_three, size):
    os.truncate(f"{shard_of_three}.bin", size)
    with pytest.raises(ShardFormatError, match=rf"holds {size} bytes, but its index promises 6 tokens \(12 bytes\)"):
        Shard.open(shard_of_three)


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_half_a_shard_is_rejected(shard_of_three, suffix):
    Path(f"{shard_of_three}{suffix}").unlink()
    with pytest.raises(MissingShardError, match=rf"hi-00000-000\{suffix}: there is no such file"):
        Shard.open(shard_of_three)


def test_the_manifest_is_held_against_the_shard(shard_of_three):
    Shard.open(shard_of_three, expect=SimpleNamespace(num_tokens=6, num_documents=3, bin_bytes=12))
    for num_tokens, num_documents in ((7, 3), (6, 2)):
        expect = SimpleNamespace(num_tokens=num_tokens, num_documents=num_documents, bin_bytes=2 * num_tokens)
        with pytest.raises(ShardFormatError, match="holds 3 documents and 6 tokens, the manifest says"):
            Shard.open(shard_of_three, expect=expect)


def test_ids_of_another_width_than_the_manifest_says(shard_of_three):
    with pytest.raises(ShardFormatError, match="holds uint16 ids in 12 bytes, the manifest says 24"):
        Shard.open(shard_of_three, expect=SimpleNamespace(num_tokens=6, num_documents=3, bin_bytes=24))


def test_a_disk_that_refuses_is_a_located_error(shard_of_three, monkeypatch):
    def fail(descriptor, size, offset):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(ShardError, match=r"hi-00000-000: cannot be read: .*Input/output error"):
        Shard.open(shard_of_three)


def test_a_damaged_offset_in_the_middle_is_seen_when_it_is_used(shard_of_three):
    patch(shard_of_three.with_name(shard_of_three.name + ".idx"), 54, 10**9)
    shard = Shard.open(shard_of_three)  # opening reads the ends alone
    for index in (0, 1):
        with pytest.raises(ShardFormatError, match=f"document {index} lies at bytes"):
            shard.document(index)
    assert shard.document(2).tolist() == [2]


def test_a_file_that_shrinks_after_opening_is_an_error_not_a_crash(shard_of_three):
    shard = Shard.open(shard_of_three)
    os.truncate(f"{shard_of_three}.bin", 4)
    with pytest.raises(ShardFormatError, match="held 12 bytes when it was opened and holds 4 now"):
        _ = shard.tokens
    Path(f"{shard_of_three}.idx").unlink()
    with pytest.raises(MissingShardError, match="gone now"):
        shard.document_of_token(0)


def test_big_endian_machines_are_told(shard_of_three, monkeypatch):
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(ShardFormatError, match="little-endian and this machine is not"):
        Shard.open(shard_of_three)
