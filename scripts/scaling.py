"""A build of any size on paper: the tables of docs/scaling.md from what was measured on one core.

python scripts/bench_stages.py CORPUS SCRATCH > stages.json
python scripts/scaling.py stages.json --tokens 1e12
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

COUNTED_BYTES = 50e9
SPLIT_BYTES = 1 << 30
RECEIPT_SECONDS, RECEIPT_THREADS = 0.02, 16
CORES = (2, 64, 256, 1024)
DISKS = (0.5e9, 2e9, 10e9, 50e9)


@dataclass(frozen=True)
class Paper:
    """One build, from its measured inputs."""

    tokens: float
    measured: dict
    input_share: float
    """Bytes on disk per byte of text: 0.2 for zstd, 1.05 for plain JSONL."""

    @property
    def text(self) -> float:
        return self.tokens * self.measured["bytes_per_token"]

    @property
    def shard_bytes(self) -> float:
        return self.text * self.measured["shard_bytes_per_text_byte"]

    def core_seconds(self) -> dict[str, float]:
        """CPU seconds by stage. Training and warming are one task each, of a size that does not grow with the corpus."""
        per_gb, once = self.measured["cpu_seconds_per_gb"], self.measured["cpu_seconds"]
        counted = min(self.text, COUNTED_BYTES) / 1e9
        merges = sum(value for stage, value in per_gb.items() if stage.startswith("merge"))
        return {
            "count (50 GB of it)": counted * per_gb["count"],
            "merge": counted * merges,
            "train": once["train"],
            "warm": once["warm"],
            "tokenize": self.text / 1e9 * per_gb["tokenize"],
            "verify": self.text / 1e9 * per_gb["verify"],
        }

    def seconds(self, cores: int, disk: float) -> tuple[float, float]:
        """Seconds of tokenizing by the cores alone, and by the disks alone (input read once, shards written once)."""
        return self.core_seconds()["tokenize"] / cores, (self.text * self.input_share + self.shard_bytes) / disk


def hours(seconds: float) -> str:
    """A duration as a person says it."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stages", type=Path, help="what scripts/bench_stages.py printed")
    parser.add_argument("--tokens", type=float, default=1e12)
    arguments = parser.parse_args()
    measured = json.loads(arguments.stages.read_text())
    plain = Paper(arguments.tokens, measured, 1.05)
    packed = Paper(arguments.tokens, measured, 0.2)
    splits = plain.text / SPLIT_BYTES
    print(f"text {plain.text / 1e12:.2f} TB, shards {plain.shard_bytes / 1e12:.2f} TB, {splits:,.0f} splits\n")
    print("| stage | core-hours |\n|---|---:|")
    costs = plain.core_seconds()
    for stage, seconds in costs.items():
        print(f"| {stage} | {seconds / 3600:,.2f} |")
    print(f"| all | {sum(costs.values()) / 3600:,.1f} |\n")
    print("| cores | tokenize, by the cores | " + " | ".join(f"disk {disk / 1e9:g} GB/s" for disk in DISKS) + " |")
    print("|---:|---:|" + "---:|" * len(DISKS))
    for cores in CORES:
        row = [max(plain.seconds(cores, disk)) for disk in DISKS]
        print(f"| {cores:,} | {hours(plain.seconds(cores, DISKS[0])[0])} | " + " | ".join(map(hours, row)) + " |")
    speed = plain.text / costs["tokenize"]
    for name, paper in (("plain JSONL", plain), ("zstd", packed)):
        through = speed * (paper.input_share + measured["shard_bytes_per_text_byte"])
        saturates = ", ".join(f"{disk / 1e9:g} GB/s by {disk / through:,.0f} cores" for disk in DISKS)
        print(f"\n{name}: a core moves {through / 1e6:.0f} MB/s; saturated: {saturates}")
    print(f"\nreceipts of an object store read in {splits * RECEIPT_SECONDS / RECEIPT_THREADS:.0f} s")
    manifest = 2 * splits * measured["manifest_bytes_per_shard"]
    print(f"shards {2 * splits:,.0f} (training and held-out), manifest {manifest / 1e6:.1f} MB")
    print(f"word tables {min(plain.text, COUNTED_BYTES) * measured['table_bytes_per_text_byte'] / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
