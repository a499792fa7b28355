"""ShardWriter: what it writes, what it refuses, and that nothing is left when anything fails."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokpipe.shards.writer as writer_module
from tokpipe.errors import ShardError
from tokpipe.shards import ShardWriter


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def independent_read(prefix: Path) -> list[list[int]]:
    """Another reader, from the byte table alone: twenty lines, stdlib, nothing of tokpipe."""
    index = prefix.with_name(prefix.name + ".idx").read_bytes()
    data = prefix.with_name(prefix.name + ".bin").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    version, code, count, num_indices = struct.unpack_from("<QBQQ", index, 9)
    assert (version, num_indices) == (1, count + 1)
    letter, size = {8: ("H", 2), 4: ("i", 4)}[code]
    lengths = struct.unpack_from(f"<{count}i", index, 34)
    offsets = struct.unpack_from(f"<{count}q", index, 34 + 4 * count)
    indices = struct.unpack_from(f"<{count + 1}q", index, 34 + 12 * count)
    assert list(indices) == list(range(count + 1))
    assert len(index) == 42 + 20 * count
    assert len(data) == size * sum(lengths)
    documents = []
    for length, offset in zip(lengths, offsets, strict=True):
        documents.append(list(struct.unpack_from(f"<{length}{letter}", data, offset)))
    return documents


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(
    batches=st.lists(st.lists(st.lists(st.integers(0, 65_499), min_size=1, max_size=12), max_size=5), max_size=5),
    dtype=st.sampled_from(["uint16", "int32"]),
)
def test_an_independent_reader_gives_the_documents_back(batch, batches, dtype):
    with tempfile.TemporaryDirectory() as folder, ShardWriter(Path(folder) / "s", dtype=dtype) as writer:
        for documents in batches:
            writer.append(*batch([np.array(document) for document in documents]))
        info = writer.commit()
        expected = [document for documents in batches for document in documents]
        if not expected:
            assert info is None
            assert names(Path(folder)) == []
        else:
            assert independent_read(Path(folder) / "s") == expected
            assert (info.num_documents, info.num_tokens) == (len(expected), sum(map(len, expected)))


def test_info_tells_sizes_and_hashes(tmp_path, documents, batch):
    with ShardWriter(tmp_path / "a" / "s.1", dtype="uint16") as writer:
        writer.append(*batch(documents(np.random.default_rng(1), count=100)))
        info = writer.commit()
    data, index = (tmp_path / "a" / "s.1.bin").read_bytes(), (tmp_path / "a" / "s.1.idx").read_bytes()
    assert (info.bin_bytes, info.idx_bytes) == (len(data), len(index)) == (2 * info.num_tokens, 42 + 20 * 100)
    assert info.bin_xxh3 == xxhash.xxh3_128_hexdigest(data)
    assert info.idx_xxh3 == xxhash.xxh3_128_hexdigest(index)


def test_batches_do_not_change_the_bytes(tmp_path, documents, batch):
    everything = documents(np.random.default_rng(2), count=90)
    for name, size in (("one", 90), ("many", 7)):
        with ShardWriter(tmp_path / name, dtype="int32") as writer:
            for start in range(0, 90, size):
                writer.append(*batch(everything[start : start + size]))
            writer.commit()
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"many{suffix}").read_bytes()


@pytest.mark.parametrize("block", [7, 100, 501])  # 500 documents: 500 divides into one, 501 indices into another
def test_lengths_that_moved_to_a_file_give_the_same_index(tmp_path, monkeypatch, documents, batch, block):
    everything = documents(np.random.default_rng(3), count=500)
    with ShardWriter(tmp_path / "memory", dtype="uint16") as writer:
        writer.append(*batch(everything))
        writer.commit()
    monkeypatch.setattr(writer_module, "SPILL_BYTES", 64)
    monkeypatch.setattr(writer_module, "_BLOCK_DOCUMENTS", block)
    with ShardWriter(tmp_path / "spilled", dtype="uint16") as writer:
        for start in range(0, 500, 50):
            writer.append(*batch(everything[start : start + 50]))
        writer.commit()
    assert (tmp_path / "memory.idx").read_bytes() == (tmp_path / "spilled.idx").read_bytes()


def test_memory_does_not_grow_with_documents(tmp_path):
    """Three million documents: as Python ints their lengths alone would take 100 MB."""
    ids, offsets = np.full(100_000, 2, np.uint16), np.arange(100_001)
    tracemalloc.start()
    with ShardWriter(tmp_path / "s", dtype="uint16") as writer:
        for _ in range(30):
            writer.append(ids, offsets)
        info = writer.commit()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert info.num_documents == 3_000_000
    assert peak < 25e6


def test_nothing_has_its_final_name_before_commit(tmp_path):
    with ShardWriter(tmp_path / "s", dtype="uint16") as writer:
        writer.append(np.array([5, 2]), np.array([0, 2]))
        assert all(name.endswith(".part") for name in names(tmp_path))
    assert names(tmp_path) == []


def test_no_documents_no_files(tmp_path):
    with ShardWriter(tmp_path / "sub" / "s", dtype="uint16") as writer:
        writer.append(np.array([], np.uint16), np.array([0]))
        assert writer.commit() is None
    assert names(tmp_path) == []


def test_an_exception_inside_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), ShardWriter(tmp_path / "s", dtype="uint16") as writer:
        writer.append(np.array([5, 2]), np.array([0, 2]))
        raise KeyboardInterrupt
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("ids", "offsets", "message"),
    [
        ([5, 2, 2], [0, 2, 2, 3], "document 1 of the batch has 0 tokens"),
        ([5, 2], [0, 1], "offsets must run from 0 to 2"),
        ([5, 2], [1, 2], "offsets must run from 0 to 2"),
        ([5, 2], [], "offsets must run from 0 to 2"),
        ([5, 2], [0, 3, 2], "document 1 of the batch has -1 tokens"),
        ([70_000, 2], [0, 2], "id 70,000 does not fit uint16"),
    ],
)
def test_bad_batches_are_refused_and_the_shard_goes_on(tmp_path, ids, offsets, message):
    with ShardWriter(tmp_path / "s", dtype="uint16") as writer:
        writer.append(np.array([9, 2]), np.array([0, 2]))
        with pytest.raises(ValueError, match=message):
            writer.append(np.array(ids), np.array(offsets, np.int64))
        writer.commit()
    assert independent_read(tmp_path / "s") == [[9, 2]]


def test_too_many_documents_for_one_shard(tmp_path, monkeypatch):
    monkeypatch.setattr(writer_module, "MAX_DOCUMENTS", 2)
    with ShardWriter(tmp_path / "s", dtype="uint16") as writer, pytest.raises(ValueError, match="begin another shard"):
        writer.append(np.array([2, 2, 2]), np.arange(4))


def test_a_closed_writer_refuses(tmp_path):
    writer = ShardWriter(tmp_path / "s", dtype="uint16")
    writer.append(np.array([2]), np.array([0, 1]))
    writer.commit()
    writer.abort()  # does nothing any more
    assert names(tmp_path) == ["s.bin", "s.idx"]
    for call in (writer.commit, lambda: writer.append(np.array([2]), np.array([0, 1]))):
        with pytest.raises(ValueError, match="committed or aborted"):
            call()


@pytest.mark.parametrize("step", ["fsync", "first rename", "second rename", "fsync folder"])
def test_any_failure_of_commit_leaves_no_final_name(tmp_path, monkeypatch, step):
    calls = {"fsync": 0, "rename": 0}
    real_fsync, real_replace = os.fsync, Path.replace
    full = OSError(errno.ENOSPC, "No space left on device")

    def fsync(descriptor):
        calls["fsync"] += 1
        if (step, calls["fsync"]) in {("fsync", 1), ("fsync folder", 3)}:
            raise full
        real_fsync(descriptor)

    def replace(self, target):
        calls["rename"] += 1
        if (step, calls["rename"]) in {("first rename", 1), ("second rename", 2)}:
            raise full
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    writer = ShardWriter(tmp_path / "s", dtype="uint16")
    writer.append(np.array([5, 2]), np.array([0, 2]))
    with pytest.raises(ShardError, match=r"could not be written after 1 documents.*No space left.*Nothing of it was kept"):
        writer.commit()
    assert names(tmp_path) == []


def test_ctrl_c_during_commit_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(descriptor):
        raise KeyboardInterrupt

    writer = ShardWriter(tmp_path / "s", dtype="uint16")
    writer.append(np.array([5, 2]), np.array([0, 2]))
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.commit()
    assert names(tmp_path) == []


def test_bin_gets_its_name_before_idx(tmp_path, monkeypatch):
    order = []
    real = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: (order.append(target.name), real(self, target))[1])
    with ShardWriter(tmp_path / "s", dtype="uint16") as writer:
        writer.append(np.array([2]), np.array([0, 1]))
        writer.commit()
    assert order == ["s.bin", "s.idx"]


def test_a_folder_that_cannot_be_made_is_a_located_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(ShardError, match="file/s: could not be written after 0 documents"),
        ShardWriter(tmp_path / "file" / "s", dtype="uint16") as writer,
    ):
        writer.append(np.array([2]), np.array([0, 1]))


def test_two_attempts_at_one_shard_do_not_mix(tmp_path):
    with ShardWriter(tmp_path / "s", dtype="uint16") as one, ShardWriter(tmp_path / "s", dtype="uint16") as two:
        for writer in (one, two):
            writer.append(np.array([7, 2]), np.array([0, 2]))
        one.append(np.array([8, 2]), np.array([0, 2]))
        two.append(np.array([8, 2]), np.array([0, 2]))
        assert one.commit() == two.commit()
    assert independent_read(tmp_path / "s") == [[7, 2], [8, 2]]


def test_a_killed_process_leaves_no_final_name(tmp_path):
    code = (
        "import os, signal, sys, numpy as np\n"
        "from tokpipe.shards import ShardWriter, writer\n"
        "writer.SPILL_BYTES = 10\n"
        "shard = ShardWriter(sys.argv[1], dtype='uint16')\n"
        "shard.append(np.full(1000, 2), np.arange(1001))\n"
        "real = os.fsync\n"
        "os.fsync = lambda fd: (real(fd), os.kill(os.getpid(), signal.SIGKILL))\n"
        "shard.commit()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], check=False)
    assert done.returncode == -9
    assert names(tmp_path)
    assert all(name.endswith(".part") for name in names(tmp_path))
