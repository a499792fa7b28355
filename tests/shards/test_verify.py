"""verify finds every kind of damage, and says which."""

from __future__ import annotations

import errno
import os
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash

import tokpipe.shards.scan as scan
from tokpipe.errors import ManifestError, TokenizerError, VerificationError
from tokpipe.shards import dataset_id, verify_dataset, verify_shard, write_manifest


def flip_bit(path: Path, byte: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def problems(folder: Path) -> dict[str, list[str]]:
    """What verify finds: kind -> messages."""
    found: dict[str, list[str]] = {}
    for problem in verify_dataset(folder).problems:
        found.setdefault(problem.kind, []).append(problem.message)
    return found


def sign(folder, manifest):
    """Rewrite the manifest with the hashes that the files have now: a careless tool wrote the shards, not a broken disk."""
    entries = tuple(
        entry._replace(
            bin_xxh3=xxhash.xxh3_128_hexdigest((folder / f"{entry.name}.bin").read_bytes()),
            idx_xxh3=xxhash.xxh3_128_hexdigest((folder / f"{entry.name}.idx").read_bytes()),
        )
        for entry in manifest.shards
    )
    write_manifest(folder, replace(manifest, shards=entries, dataset_id=dataset_id(manifest.tokenizer.fingerprint, entries)))


@pytest.fixture
def dataset(make_dataset):
    """A dataset that keeps every promise."""
    return make_dataset()


def test_a_good_dataset_has_no_problems(dataset):
    folder, manifest = dataset
    seen = []
    report = verify_dataset(folder, on_progress=seen.append, fingerprint_of=lambda _: manifest.tokenizer.fingerprint)
    assert report.ok
    assert report.problems == report.leftovers == ()
    assert (report.num_shards, report.num_documents) == (4, 200)
    assert report.num_tokens == sum(entry.num_tokens for entry in manifest.shards)
    assert sum(seen) == report.num_bytes
    assert "every promise is kept" in report.summary()
    assert report.as_dict()["ok"] is True
    report.raise_if_bad()


def test_blocks_do_not_change_the_verdict(dataset, monkeypatch):
    monkeypatch.setattr(scan, "BLOCK_BYTES", 16)
    monkeypatch.setattr(scan, "_BLOCK_DOCUMENTS", 3)
    assert verify_dataset(dataset[0]).ok


def test_one_flipped_bit_in_a_bin(dataset):
    flip_bit(dataset[0] / "shards/hi-00001-000.bin", 40)
    found = problems(dataset[0])
    assert len(found["hash"]) == 1
    assert "hi-00001-000.bin: its bytes were altered: xxh3-128" in found["hash"][0]


@pytest.mark.parametrize("byte", [0, 9, 17, 18, 26, 34, 100, 234, 500, 634, 1000])
def test_one_flipped_bit_in_an_idx(dataset, byte):
    flip_bit(dataset[0] / "shards/en-00002-000.idx", byte)
    found = problems(dataset[0])
    assert set(found) == {"hash", "format"}  # altered, and what exactly is wrong with it
    assert "en-00002-000.idx: its bytes were altered" in found["hash"][0]
    assert "en-00002-000.idx: " in found["format"][0]


def test_every_bit_of_an_index_counts(dataset):
    folder, manifest = dataset
    entry = manifest.shards[0]
    path = folder / f"{entry.name}.idx"
    for byte in range(0, entry.idx_bytes, 7):
        flip_bit(path, byte, byte % 8)
        assert verify_shard(folder, entry, manifest), f"bit {byte % 8} of byte {byte}"
        flip_bit(path, byte, byte % 8)
    assert verify_shard(folder, entry, manifest) == []


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_truncated_file(dataset, suffix):
    folder, _ = dataset
    path = folder / f"shards/hi-00000-000{suffix}"
    size = path.stat().st_size
    os.truncate(path, size - 2)
    found = problems(folder)
    assert set(found) == {"size"}
    assert f"shards/hi-00000-000{suffix}: is cut short: {size - 2:,} bytes, expected {size:,}. Copy" in found["size"][0]


def test_a_file_that_grew(dataset):
    with (dataset[0] / "shards/hi-00000-000.bin").open("ab") as file:
        file.write(b"\0\0")
    assert "is too long" in problems(dataset[0])["size"][0]


def test_swapped_shards(dataset):
    folder, _ = dataset
    one, two = folder / "shards/hi-00000-000", folder / "shards/hi-00001-000"
    for suffix in (".bin", ".idx"):
        first, second = Path(f"{one}{suffix}"), Path(f"{two}{suffix}")
        first.rename(folder / "aside")
        second.rename(first)
        (folder / "aside").rename(second)
    found = problems(folder)
    assert set(found) == {"swapped"}
    assert len(found["swapped"]) == 4
    assert "hi-00000-000.idx: holds the bytes of shards/hi-00001-000.idx: the files were swapped" in found["swapped"][0]


def test_swapped_shards_of_equal_size(make_dataset):
    parts = [[np.array([number, 9, 2]), np.array([number, 2])] for number in (10, 11, 12, 13)]
    folder, _ = make_dataset(documents=parts)
    shutil.copy(folder / "shards/hi-00001-000.bin", folder / "shards/hi-00000-000.bin")
    found = problems(folder)
    assert set(found) == {"swapped"}
    assert "hi-00000-000.bin: holds the bytes of shards/hi-00001-000.bin" in found["swapped"][0]


def test_equal_shards_are_not_swapped(make_dataset):
    folder, _ = make_dataset(documents=[[np.array([9, 2])]] * 4)
    assert verify_dataset(folder).ok


def test_a_missing_shard(dataset):
    for suffix in (".bin", ".idx"):
        (dataset[0] / f"shards/hi-00000-000{suffix}").unlink()
    found = problems(dataset[0])
    assert set(found) == {"missing"}
    assert "shards/hi-00000-000: the shard is missing, both its .bin and its .idx" in found["missing"][0]


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_half_a_shard_missing(dataset, suffix):
    (dataset[0] / f"shards/hi-00000-000{suffix}").unlink()
    found = problems(dataset[0])
    assert set(found) == {"missing"}
    assert f"hi-00000-000{suffix}: the file is missing while its other half is there" in found["missing"][0]


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_disk_that_refuses_is_a_problem_of_one_file(dataset, monkeypatch, suffix):
    real = Path.open

    def fail(self, *args, **kwargs):
        if self.name == f"hi-00000-000{suffix}":
            raise OSError(errno.EIO, "Input/output error")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", fail)
    found = problems(dataset[0])
    assert set(found) == {"unreadable"}
    assert f"hi-00000-000{suffix}: cannot be read: [Errno 5] Input/output error" in found["unreadable"][0]


def test_an_index_that_shrinks_while_it_is_read(dataset, monkeypatch):
    real = scan.hash_file

    def cut_after_hashing(files, name, on_bytes):
        digest = real(files, name, on_bytes)
        os.truncate(dataset[0] / name, 60)
        return digest

    monkeypatch.setattr(scan, "hash_file", cut_after_hashing)
    found = problems(dataset[0])
    assert set(found) == {"unreadable"}
    assert "hi-00000-000.idx: cannot be read: the file ended inside bytes 34 to 234" in found["unreadable"][0]


def test_a_shard_too_many(dataset):
    for suffix in (".bin", ".idx"):
        shutil.copy(dataset[0] / f"shards/hi-00000-000{suffix}", dataset[0] / f"shards/hi-00009-000{suffix}")
    found = problems(dataset[0])
    assert set(found) == {"extra"}
    assert len(found["extra"]) == 2
    assert "shards/hi-00009-000.bin: lies among the shards but is not in the manifest" in found["extra"][0]


def test_leftovers_of_dead_attempts_are_told_but_no_problem(dataset):
    (dataset[0] / "shards/hi-00000-000.bin.77-abcd.part").write_bytes(b"half")
    report = verify_dataset(dataset[0])
    assert report.ok
    assert report.leftovers == ("shards/hi-00000-000.bin.77-abcd.part",)
    assert "1 unfinished files" in report.summary()


def test_an_edited_manifest(dataset):
    path = dataset[0] / "dataset.json"
    path.write_text(path.read_text().replace('"bad-json": 3', '"bad-json": 0'))
    with pytest.raises(ManifestError, match="was changed after it was written"):
        verify_dataset(dataset[0])


def test_a_tokenizer_that_cannot_be_read_does_not_hide_what_else_is_wrong(dataset):
    folder, manifest = dataset

    def refuse(path):
        raise TokenizerError("not a model")

    flip_bit(folder / f"{manifest.shards[0].name}.bin", 0)
    report = verify_dataset(folder, fingerprint_of=refuse)
    assert report.problems[0].kind == "tokenizer" and "cannot be read: not a model" in report.problems[0].message
    assert "hash" in [problem.kind for problem in report.problems]


def test_the_tokenizer_is_held_against_the_manifest(dataset):
    folder, _ = dataset
    (folder / "tokenizer/card.json").write_text('{"fingerprint": "of another"}')
    assert "card.json: is of another tokenizer: fingerprint of another" in problems(folder)["tokenizer"][0]
    (folder / "tokenizer/card.json").write_text("[]")
    assert "fingerprint (unreadable)" in problems(folder)["tokenizer"][0]
    (folder / "tokenizer/card.json").unlink()
    report = verify_dataset(folder, fingerprint_of=lambda path: f"print of {path.name}")
    assert "tokenizer.model: is of another tokenizer: fingerprint print of tokenizer.model" in report.problems[0].message
    (folder / "tokenizer/tokenizer.model").unlink()
    assert "the tokenizer is missing" in problems(folder)["missing"][0]


GOOD = [np.array([5, 6, 2]), np.array([7, 2])]


@pytest.mark.parametrize(
    ("documents", "kind", "message"),
    [
        (
            [np.array([5, 300, 2]), *GOOD],
            "vocabulary",
            "1 ids are not below the vocabulary's size 300; the first: token 1 is 300",
        ),
        ([*GOOD, np.array([5, 6])], "eos", r"1 documents do not end in </s> \(id 2\); the first: document 2 ends in id 6"),
        ([*GOOD, np.array([5, 2, 6, 2])], "eos", r"1 </s> \(id 2\) inside documents; the first: document 2 has one at token 6"),
        (
            [np.array([2, 2]), *GOOD, np.array([2, 2])],
            "eos",
            "2 </s> .* inside documents; the first: document 0 has one at token 0",
        ),
    ],
)
@pytest.mark.parametrize("block_bytes", [4, 1 << 20])
def test_ids_that_break_a_promise_though_hashes_agree(make_dataset, monkeypatch, documents, kind, message, block_bytes):
    monkeypatch.setattr(scan, "BLOCK_BYTES", block_bytes)
    folder, _ = make_dataset(documents=[GOOD, documents])
    report = verify_dataset(folder)
    assert [problem.kind for problem in report.problems] == [kind]
    with pytest.raises(VerificationError, match=message):
        report.raise_if_bad()


@pytest.mark.parametrize("block_bytes", [2, 4, 6, 1 << 20])
def test_documents_begin_with_bos_where_that_is_promised(make_dataset, monkeypatch, block_bytes):
    monkeypatch.setattr(scan, "BLOCK_BYTES", block_bytes)
    good = [np.array([1, 5, 2]), np.array([1, 2]), np.array([1, 7, 8, 2])]
    folder, manifest = make_dataset(documents=[good], prepend_bos=True)
    assert verify_dataset(folder).ok
    shutil.rmtree(folder)
    folder, manifest = make_dataset(documents=[[*good, np.array([9, 1, 2])]], prepend_bos=True)
    (problem,) = verify_shard(folder, manifest.shards[0], manifest)
    assert problem.kind == "bos"
    assert "1 documents do not begin with <s> (id 1); the first: the one at token 9 of the shard, with id 9" in problem.message


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (38, 0, "document 1 has 0 tokens, expected at least one"),
        (38, 3, "byte offset 2 is 10, expected 12"),
        (42, 3, "lengths add up to 16 bytes, the .bin has 14"),
        (54, 8, "byte offset 1 is 8, expected 6"),
        (78, 5, "document index 1 is 5, expected 1"),
        (18, 2, "2 sequences but 4 document indices"),
        (17, 4, "says 3 documents of int32, the manifest says 3 of uint16"),
    ],
)
def test_an_index_that_breaks_a_promise_though_hashes_agree(make_dataset, offset, value, message):
    folder, manifest = make_dataset(documents=[[*GOOD, np.array([8, 2])]])
    path = folder / "shards/hi-00000-000.idx"
    data = bytearray(path.read_bytes())
    data[offset] = value
    path.write_bytes(data)
    sign(folder, manifest)
    found = problems(folder)
    assert set(found) == {"format"}
    assert message in found["format"][0]


def test_many_problems_are_cut_in_the_error_but_not_in_the_report(dataset):
    for number in range(30):
        (dataset[0] / f"shards/x-{number}.bin").write_bytes(b"")
    report = verify_dataset(dataset[0])
    assert len(report.as_dict()["problems"]) == 30
    assert "30 problems" in report.summary()
    with pytest.raises(VerificationError, match=r"(?s)30 problems in dataset .*and 10 more") as caught:
        report.raise_if_bad()
    assert len(str(caught.value).splitlines()) == 22


def test_memory_stays_bounded(tmp_path, make_dataset):
    rng = np.random.default_rng(0)
    documents = [np.append(rng.integers(4, 300, 2_000_000), 2) for _ in range(8)] + [np.array([2])] * 100_000
    folder, _ = make_dataset(documents=[documents])
    tracemalloc.start()
    assert verify_dataset(folder).ok
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6
