"""How long planning takes, and how much memory: 5 TB of corpus as 10,000 and as 1,000,000 files.

The files are real but sparse: they have a size and take no space. What is timed is what `tokpipe build` does before its first
task: list, look at each file's first bytes, cut into splits, write the plan, open one split again. Each case runs in a process of
its own, so that its peak memory is its own.

    python scripts/bench_plan.py /tmp/scratch --files 10000 1000000
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

TOTAL_BYTES = 5_000_000_000_000
LIMIT_SECONDS, LIMIT_BYTES = 60, 1_000_000_000


def make_files(folder: Path, num_files: int) -> None:
    """`num_files` sparse JSONL files of equal size in four sources, a thousand to a folder."""
    size = TOTAL_BYTES // num_files
    for number in range(num_files):
        parent = folder / ("hi", "en", "code", "mix")[number % 4] / f"{number // 4000:05d}"
        if number % 4000 < 4:
            parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(parent / f"part-{number:07d}.jsonl", os.O_CREAT | os.O_WRONLY, 0o644)
        os.ftruncate(descriptor, size)
        os.close(descriptor)


def plan(folder: Path, out: Path) -> None:
    """Plan once and print what it took."""
    from tokpipe.corpus import CorpusConfig, Splits, plan_splits, read_inventory

    began = time.monotonic()
    inventory = read_inventory(CorpusConfig(corpus=str(folder)))
    listed = time.monotonic()
    fingerprint = inventory.fingerprint()
    splits = plan_splits(inventory, split_bytes=1 << 30)
    inventory.write(out / "inventory.arrow")
    splits.write(out / "splits.arrow")
    split = Splits.read(out / "splits.arrow")[len(splits) - 1]
    planned = time.monotonic()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"{len(inventory):>9,} files, {inventory.num_bytes / 1e12:.1f} TB -> {len(splits):,} splits "
        f"(last one: {len(split.parts):,} parts): list {listed - began:.1f} s, plan {planned - listed:.1f} s, "
        f"peak memory {peak / 1e6:.0f} MB, on disk {sum(p.stat().st_size for p in out.iterdir()) / 1e6:.0f} MB, "
        f"fingerprint {fingerprint[:12]}"
    )
    if planned - began > LIMIT_SECONDS or peak > LIMIT_BYTES:
        sys.exit(f"over the limit of {LIMIT_SECONDS} s and {LIMIT_BYTES / 1e9:.0f} GB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scratch", type=Path, help="a folder for the sparse files; what is made in it is removed")
    parser.add_argument("--files", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.in_this_process:
        plan(arguments.scratch / "corpus", arguments.scratch / "plan")
        return
    for num_files in arguments.files:
        corpus, out = arguments.scratch / "corpus", arguments.scratch / "plan"
        out.mkdir(parents=True)
        try:
            make_files(corpus, num_files)
            subprocess.run([sys.executable, __file__, str(arguments.scratch), "--in-this-process"], check=True)
        finally:
            shutil.rmtree(corpus, ignore_errors=True)
            shutil.rmtree(out, ignore_errors=True)


if __name__ == "__main__":
    main()
