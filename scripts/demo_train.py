"""From raw text to a falling loss: train a recipe, then hold its validation loss against the unigram entropy of the same tokens.

    python scripts/demo_train.py recipes/tiny-cpu.toml --data demo/train-data --out runs/tiny-cpu

A model that has learnt nothing but how often each token occurs reaches the unigram entropy; anything below it was learnt from
context. The script fails if the loss does not end at least `--margin` nats below, and saves the plot with the entropy as a line.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tokpipe.dataset import IGNORED_LABEL, TokenDataset, TokenLoader
from tokpipe.shards import read_manifest
from tokpipe.trainer import TrainConfig, plot_losses, read_metrics, read_train_config


def held_out_counts(config: TrainConfig) -> Counter[int]:
    """How often each token is a label of the validation pass, over all sources."""
    counts: Counter[int] = Counter()
    for source in read_manifest(Path(config.data.path)).sources:
        dataset = TokenDataset(
            config.data.path,
            seq_len=config.data.seq_len,
            global_batch_size=config.data.global_batch_size,
            weights={source: 1.0},
            held_out=True,
        )
        for batch in TokenLoader(dataset, config.micro_batch_size).steps():
            counts.update(batch.labels[batch.labels != IGNORED_LABEL].tolist())
    return counts


def entropy(counts: Counter[int]) -> float:
    """Entropy in nats of the distribution that the counts are."""
    total = sum(counts.values())
    return -sum(n / total * math.log(n / total) for n in counts.values())


def main() -> int:
    """Train, compare, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--margin", type=float, default=0.3, help="nats below the unigram entropy that the loss has to end")
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    started = time.perf_counter()
    command = [sys.executable, "-m", "tokpipe", "train", options.recipe, "--data", options.data, "--out", options.out, "--json"]
    summary = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    seconds = time.perf_counter() - started
    unigram = entropy(held_out_counts(read_train_config(options.recipe, overrides=(f"data.path={json.dumps(options.data)}",))))
    plot_losses(
        read_metrics(Path(options.out) / "metrics.jsonl"), Path(options.out) / "loss.png", reference={"unigram entropy": unigram}
    )
    losses = summary["validation"]
    print(f"{summary['last_step']} steps in {seconds:.0f} s; unigram entropy of the validation tokens {unigram:.3f} nats")
    for source, loss in losses.items():
        print(f"  validation loss {source:<8} {loss:.3f}")
    below = unigram - losses["all"]
    print(f"{below:.3f} nats below the unigram entropy (asked for: {options.margin}); plot: {options.out}/loss.png")
    return 0 if below >= options.margin else 1


if __name__ == "__main__":
    sys.exit(main())
