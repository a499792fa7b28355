"""What the trainer costs: tokens/s of `tokpipe train`'s loop beside a bare PyTorch loop, same model and batches, one process.

    python scripts/bench_train.py [--steps 20] [--rounds 5] [--device cuda] [--bf16]

The two take turns, so that a busy machine slows both; the figure is the median over the rounds of the ratio inside a round. The
bare loop is what one would write by hand: forward, cross-entropy, backward, clip, AdamW.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from tokpipe.trainer import ModelConfig, OptimizerConfig, ParallelConfig, StepBatch, TrainConfig, Transformer, run_training
from tokpipe.trainer.config import CheckpointConfig, DataConfig, MetricsConfig, RunConfig

MODEL = ModelConfig(num_layers=4, hidden_size=192, num_heads=6, num_kv_heads=2, ffn_size=512, vocab_size=4096)
GLOBAL_BATCH, SEQ_LEN = 8, 128


def batch_of(step: int) -> StepBatch:
    """A batch of random tokens, the same for both."""
    tokens = torch.randint(0, MODEL.vocab_size, (GLOBAL_BATCH, SEQ_LEN + 1), generator=torch.Generator().manual_seed(step))
    return StepBatch(inputs=tokens[:, :-1], labels=tokens[:, 1:])


class Endless:
    """A source of random batches, made beforehand."""

    def __init__(self, count: int) -> None:
        self._batches = [batch_of(step) for step in range(count)]
        self._step = 0

    def next_step(self) -> StepBatch:
        """The next batch."""
        self._step += 1
        return self._batches[self._step - 1]

    def state_dict(self) -> dict[str, Any]:
        """Steps handed out."""
        return {"step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there."""
        self._step = state["step"]

    def close(self) -> None:
        """Nothing to stop."""


def trainer_seconds(steps: int, *, device: str, dtype: str) -> float:
    """Seconds of all steps but the first, as the trainer's own log has them."""
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            data=DataConfig(path="", seq_len=SEQ_LEN, global_batch_size=GLOBAL_BATCH),
            model=MODEL,
            parallel=ParallelConfig(dtype=dtype),  # type: ignore[arg-type]
            run=RunConfig(out=folder, max_steps=steps + 1, device=device, log_interval=1),  # type: ignore[arg-type]
            checkpoint=CheckpointConfig(),
            metrics=MetricsConfig(plot=False),
        )
        marks: list[float] = []

        class Timed(Endless):
            def next_step(self) -> StepBatch:
                marks.append(time.perf_counter())
                return super().next_step()

        run_training(config, source=Timed(steps + 2))
        # From the second step's first moment to the last step's: everything the loop does in between is in it.
        return (marks[-1] - marks[1]) * steps / (steps - 1)


def bare_seconds(steps: int, *, device: str, dtype: str) -> float:
    """Seconds of a loop written by hand."""
    model = Transformer(MODEL).to(device)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    defaults = OptimizerConfig()
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": defaults.weight_decay}, {"params": rest, "weight_decay": 0.0}],
        lr=defaults.lr,
        betas=defaults.betas,
        fused=True,
    )
    batches = [batch_of(step).to(torch.device(device)) for step in range(steps + 1)]
    marks: list[float] = []
    for batch in batches:
        marks.append(time.perf_counter())
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bf16"):
            logits = model(batch.inputs)
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch.labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
    return (marks[-1] - marks[1]) * steps / (steps - 1)


def main() -> int:
    """Run both in turns and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--least", type=float, default=0.95, help="ratio below which this fails")
    options = parser.parse_args()
    logging.disable()
    dtype = "bf16" if options.bf16 else "fp32"
    tokens = options.steps * GLOBAL_BATCH * SEQ_LEN
    ratios = []
    for number in range(options.rounds):
        bare = bare_seconds(options.steps, device=options.device, dtype=dtype)
        ours = trainer_seconds(options.steps, device=options.device, dtype=dtype)
        ratios.append(bare / ours)
        print(
            f"round {number + 1}: bare loop {tokens / bare:,.0f} tokens/s, trainer {tokens / ours:,.0f} tokens/s, "
            f"ratio {ratios[-1]:.3f}",
            flush=True,
        )
    median = statistics.median(ratios)
    print(f"trainer at {median:.3f}x the bare loop, median of {len(ratios)} rounds (at least {options.least} asked for)")
    return 0 if median >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
