"""A trillion tokens, and memory: measured in processes of their own, so that nothing else counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tokpipe.shards import Manifest, ShardEntry, TokenizerEntry, dataset_id, write_manifest
from tokpipe.shards.format import HEADER_BYTES, IndexHeader

NUM_SHARDS, SHARD_TOKENS = 4000, 250_000_000

OPEN = """
import json, sys, time
import tokpipe.dataset, torch, numpy
from tokpipe.dataset import TokenDataset
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before, times = resident(), []
for _ in range(5):
    begin = time.perf_counter()
    weights = {"en": 0.5, "hi": 0.5}
    dataset = TokenDataset(sys.argv[1], seq_len=2048, global_batch_size=2048, weights=weights, dp_rank=63, dp_world_size=64)
    dataset.read(0, 0, 32)
    times.append(time.perf_counter() - begin)
print(json.dumps({"seconds": min(times), "bytes": resident() - before}))
"""


@pytest.fixture(scope="module")
def trillion(tmp_path_factory):
    """4,000 sparse shards of one document each: 2 TB that take a few megabytes of disk."""
    folder = tmp_path_factory.mktemp("trillion")
    (folder / "shards").mkdir()
    index = IndexHeader("uint16", 1).pack() + np.array([SHARD_TOKENS], "<i4").tobytes() + np.array([0, 0, 1], "<i8").tobytes()
    assert len(index) == HEADER_BYTES + 28
    entries = []
    for number in range(NUM_SHARDS):
        source = "en" if number < NUM_SHARDS // 2 else "hi"
        name = f"shards/{source}-{number:05d}-000"
        (folder / f"{name}.idx").write_bytes(index)
        with (folder / f"{name}.bin").open("wb") as file:
            file.truncate(2 * SHARD_TOKENS)
        entries.append(ShardEntry(name, source, False, SHARD_TOKENS, 1, 2 * SHARD_TOKENS, len(index), f"{number:032x}", "0" * 32))
    for number, at, values in ((0, 0, range(11, 21)), (NUM_SHARDS - 1, 2 * (SHARD_TOKENS - 10), range(31, 41))):
        with (folder / f"{entries[number].name}.bin").open("r+b") as file:
            file.seek(at)
            file.write(np.array(values, "<u2").tobytes())
    write_manifest(
        folder,
        Manifest(
            dataset_id=dataset_id("f" * 16, entries),
            tool_version="0",
            created="2026-01-01T00:00:00+00:00",
            tokenizer=TokenizerEntry(fingerprint="f" * 16, vocab_size=32_000, eos_id=2),
            dtype="uint16",
            sources=("en", "hi"),
            shards=tuple(entries),
        ),
    )
    return folder


def run(code, *arguments):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
        env=environment,
    )
    return json.loads(done.stdout)


def test_trillion_tokens_open_in_milliseconds_and_megabytes(trillion):
    # The best of several tries of several processes: the machine may be busy with something else.
    for _ in range(4):
        found = run(OPEN, trillion)
        if found["seconds"] < 0.1:
            break
    assert found["seconds"] < 0.1
    assert found["bytes"] < 60 << 20


def test_trillion_tokens_are_read_at_both_ends(trillion):
    from tokpipe.dataset import TokenDataset

    # One lane over everything, as it lies. 9,901 divides 10**12 - 1, so the last sample ends with the last token.
    dataset = TokenDataset(trillion, seq_len=9901, global_batch_size=1, order="sequential")
    total = NUM_SHARDS * SHARD_TOKENS
    assert total == 10**12
    assert dataset.steps_per_epoch == (total - 1) // 9901
    first, last = dataset.read(0, 0, 1), dataset.read(dataset.steps_per_epoch - 1, 0, 1)
    assert first.input_ids[0, :12].tolist() == [*range(11, 21), 0, 0]
    assert last.labels[0, -12:].tolist() == [0, 0, *range(31, 41)]
    shard, offset = dataset.space.find(np.array([total - 1]))
    assert (shard.tolist(), offset.tolist()) == ([NUM_SHARDS - 1], [SHARD_TOKENS - 1])
    assert dataset.space.starts[-1] == total


def test_trillion_token_permutation_reaches_the_far_end(trillion):
    from tokpipe.dataset import TokenDataset

    dataset = TokenDataset(trillion, seq_len=2048, global_batch_size=2048, dp_rank=2047, dp_world_size=2048)
    positions = np.full(1000, 2047)
    _, samples = dataset.plan.locate(np.arange(1000), positions)
    per_lane = dataset.steps_per_epoch
    assert samples.min() >= 2047 * per_lane and samples.max() < 2048 * per_lane
    assert len(np.unique(samples)) == 1000


FLAT = """
import json, sys
import tokpipe.dataset.shard_store as shard_store
from tokpipe.dataset import TokenDataset, TokenLoader
shard_store.RESIDENT_BYTES = 8 << 20
dataset = TokenDataset(sys.argv[1], seq_len=2048, global_batch_size=8)
found = []
for batch in TokenLoader(dataset, 8, prefetch=0):
    if batch.step % 500 == 499:  # 16 MiB
        found.append(int(open("/proc/self/statm").read().split()[1]) * 4096)
    if len(found) == 16:
        break
print(json.dumps(found))
"""


def test_resident_memory_stays_flat_while_streaming(tmp_path, dataset_writer):
    # 256 MiB streamed out of 128: without giving pages back, all of it would stay resident.
    dataset_writer(tmp_path, [("main", False, [1 << 16] * 256) for _ in range(4)])
    found = run(FLAT, tmp_path)
    assert max(found) - min(found) < 48 << 20
