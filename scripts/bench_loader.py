"""How fast batches of 8 x 2,048 tokens with labels come out of a dataset, and whether memory stays flat.

Writes a dataset of random ids, warms the page cache, pins itself to one core and reads: tokpipe in process (with and without
document outputs), through its thread and through a worker process; the usual loop over memmap slices; and, where megatron-core
is installed, its GPTDataset one sample at a time. Then it streams 8 GB and prints the resident memory on the way.

Run: python scripts/bench_loader.py FOLDER [--mb 1024] [--seconds 2] [--json PATH]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from tokpipe.dataset import TokenDataset, TokenLoader
from tokpipe.shards import Manifest, ShardEntry, ShardWriter, TokenizerEntry, dataset_id, read_manifest, write_manifest

SEQ_LEN, MICRO, BATCH = 2048, 8, 32
STREAMED_BYTES = 8 << 30


def write_dataset(folder: Path, megabytes: int) -> None:
    """Random ids in shards of 256 MiB, in documents of 700 tokens on average."""
    rng = np.random.default_rng(0)
    entries = []
    for number in range(max(1, megabytes // 256)):
        num_tokens = min(megabytes, 256) << 19
        lengths = rng.integers(100, 1300, num_tokens // 700)
        name = f"shards/main-{number:05d}-000"
        with ShardWriter(folder / name, dtype="uint16") as writer:
            for part in np.array_split(lengths, 32):
                offsets = np.concatenate([[0], np.cumsum(part)]).astype(np.int64)
                ids = rng.integers(3, 32_000, offsets[-1], dtype=np.uint16)
                ids[offsets[1:] - 1] = 2
                writer.append(ids, offsets)
            info = writer.commit()
        keys = ("num_tokens", "num_documents", "bin_bytes", "idx_bytes", "bin_xxh3", "idx_xxh3")
        entries.append(ShardEntry(name, "main", False, *(getattr(info, key) for key in keys)))
    manifest = Manifest(
        dataset_id=dataset_id("bench", entries),
        tool_version="bench",
        created="2026-01-01T00:00:00+00:00",
        tokenizer=TokenizerEntry(fingerprint="bench", vocab_size=32_000, eos_id=2),
        dtype="uint16",
        sources=("main",),
        shards=tuple(entries),
    )
    write_manifest(folder, manifest)


def tokpipe_batches(folder: Path, **options: int | bool) -> Iterator[int]:
    """Tokens of one batch after the other."""
    documents = bool(options.pop("documents", False))
    dataset = TokenDataset(folder, seq_len=SEQ_LEN, global_batch_size=BATCH, documents=documents)
    for batch in TokenLoader(dataset, MICRO, **options):  # type: ignore[arg-type]
        yield batch.labels.numel()


def usual_loop(folder: Path) -> Iterator[int]:
    """What most training scripts do: slices of a memmap at random places, each cast to int64, stacked."""
    entry = read_manifest(folder).shards[0]
    data = np.memmap(folder / f"{entry.name}.bin", dtype=np.uint16, mode="r")
    rng = np.random.default_rng(0)
    while True:
        places = rng.integers(0, len(data) - SEQ_LEN - 1, MICRO).tolist()
        torch.stack([torch.from_numpy(data[i : i + SEQ_LEN].astype(np.int64)) for i in places])
        labels = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + SEQ_LEN].astype(np.int64)) for i in places])
        yield labels.numel()


def megatron_batches(folder: Path) -> Iterator[int]:
    """Megatron-Core's GPTDataset, one sample at a time, collated as its trainer does."""
    warnings.simplefilter("ignore")
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    class Tokenizer:
        eod, pad, vocab_size, unique_identifiers = 2, -1, 32_000, {"name": "bench"}

    entry = read_manifest(folder).shards[0]
    indexed = IndexedDataset(str(folder / entry.name))
    config = GPTDatasetConfig(
        random_seed=0,
        sequence_length=SEQ_LEN,
        split="1",
        path_to_cache=str(folder / "megatron-cache"),
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    samples = (entry.num_tokens - 1) // SEQ_LEN
    dataset = GPTDataset(indexed, str(folder / entry.name), np.arange(len(indexed), dtype=np.int32), samples, Split.train, config)
    while True:
        for first in range(0, samples - MICRO, MICRO):
            batch = torch.utils.data.default_collate([dataset[i] for i in range(first, first + MICRO)])
            yield batch["labels"].numel()


def tokens_per_second(batches: Iterator[int], seconds: float) -> tuple[float, float]:
    """By the clock and by this process's CPU time, each the best of three stretches after one that does not count.

    On a busy machine the second says what the first would be on an idle one; it leaves out what a worker process burns.
    """
    by_clock, by_cpu = 0.0, 0.0
    for stretch in range(4):
        begin, cpu, tokens = time.perf_counter(), time.process_time(), 0
        while (now := time.perf_counter()) - begin < seconds / (1 if stretch else 4):
            tokens += next(batches)
        if stretch:
            by_clock = max(by_clock, tokens / (now - begin))
            by_cpu = max(by_cpu, tokens / (time.process_time() - cpu))
    return by_clock, by_cpu


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def stream(folder: Path) -> list[int]:
    """Resident memory after every GiB of 8 streamed."""
    found, done, step = [], 0, 1 << 30
    for tokens in tokpipe_batches(folder, prefetch=0):
        done += 2 * tokens
        if done >= step * (len(found) + 1):
            found.append(resident_bytes())
        if done >= STREAMED_BYTES:
            return found
    return found


def main() -> None:
    """Run everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mb", type=int, default=1024, help="size of the dataset")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each stretch")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    arguments = parser.parse_args()
    folder = arguments.folder
    if not (folder / "dataset.json").exists():
        write_dataset(folder, arguments.mb)
    for path in folder.glob("shards/*"):
        path.read_bytes()
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    cases: dict[str, Callable[[], Iterator[int]]] = {
        "tokpipe, in process": lambda: tokpipe_batches(folder, prefetch=0),
        "usual loop (stack of memmap slices)": lambda: usual_loop(folder),
        "tokpipe, with document outputs": lambda: tokpipe_batches(folder, prefetch=0, documents=True),
        "tokpipe, thread (same core)": lambda: tokpipe_batches(folder, prefetch=4),
        "tokpipe, one worker process (same core)": lambda: tokpipe_batches(folder, num_workers=1),
    }
    if importlib.util.find_spec("megatron"):
        cases["Megatron GPTDataset, one sample at a time"] = lambda: megatron_batches(folder)
    print(f"batches of {MICRO} x {SEQ_LEN:,} with labels, one core, page cache warm; million tokens, best of 3")
    print(f"  {'':<45}{'per second':>12}{'per CPU second':>17}")
    figures = {}
    for name, make in cases.items():
        by_clock, by_cpu = (figure / 1e6 for figure in tokens_per_second(make(), arguments.seconds))
        figures[name] = {"per_second": by_clock, "per_cpu_second": by_cpu}
        print(f"  {name:<45}{by_clock:>12,.0f}{'' if 'worker' in name else f'{by_cpu:,.0f}':>17}", flush=True)
    resident = stream(folder)
    print(f"resident MiB after each of 8 GiB streamed: {', '.join(str(n >> 20) for n in resident)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"million_tokens": figures, "resident_bytes": resident}, indent=1))


if __name__ == "__main__":
    main()
