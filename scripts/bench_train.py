"""What the trainer costs: tokens/s of `tokpipe train`'s loop beside a bare PyTorch loop, same model and batches, one process.

    python scripts/bench_train.py [--steps 40] [--device cuda] [--bf16]

The two take turns step by step: while the trainer waits for its next batch, the bare loop makes a step. So a busy machine slows
both, and the ratio of the median step times says what the loop, the metrics and the parallel model cost in one process. The bare
loop is what one would write by hand: forward, cross-entropy, backward, clip, AdamW.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from tokpipe.trainer import ModelConfig, OptimizerConfig, ParallelConfig, StepBatch, TrainConfig, Transformer, run_training
from tokpipe.trainer.config import DataConfig, MetricsConfig, RunConfig

MODEL = ModelConfig(num_layers=4, hidden_size=192, num_heads=6, num_kv_heads=2, ffn_size=512, vocab_size=4096)
GLOBAL_BATCH, SEQ_LEN = 8, 128
WARM_UP = 3
"""Steps of each that do not count."""


def batch_of(step: int) -> StepBatch:
    """A batch of random tokens, the same for both."""
    tokens = torch.randint(0, MODEL.vocab_size, (GLOBAL_BATCH, SEQ_LEN + 1), generator=torch.Generator().manual_seed(step))
    return StepBatch(inputs=tokens[:, :-1], labels=tokens[:, 1:])


def bare_step(device: str, *, bf16: bool) -> Callable[[StepBatch], float]:
    """A training step written by hand."""
    model = Transformer(MODEL).to(device)
    decay, rest = ([p for p in model.parameters() if (p.dim() > 1) == big] for big in (True, False))
    defaults = OptimizerConfig()
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": defaults.weight_decay}, {"params": rest, "weight_decay": 0.0}],
        lr=defaults.lr,
        betas=defaults.betas,
        fused=True,
    )

    def step(batch: StepBatch) -> float:
        batch = batch.to(torch.device(device))
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            logits = model(batch.inputs)
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch.labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), defaults.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


class TakingTurns:
    """The trainer's source of batches, which makes a bare step before it hands one out, and times both."""

    def __init__(self, bare: Callable[[StepBatch], float]) -> None:
        self._bare = bare
        self._step = 0
        self._handed_out = 0.0
        self.bare_seconds: list[float] = []
        self.trainer_seconds: list[float] = []

    def next_step(self) -> StepBatch:
        """Time what the trainer did since the last batch, make a bare step, hand out the same batch."""
        asked = time.perf_counter()
        if self._step:
            self.trainer_seconds.append(asked - self._handed_out)
        batch = batch_of(self._step)
        self._step += 1
        started = time.perf_counter()
        self._bare(batch)
        self.bare_seconds.append(time.perf_counter() - started)
        self._handed_out = time.perf_counter()
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Steps handed out."""
        return {"step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there."""
        self._step = state["step"]

    def close(self) -> None:
        """Nothing to stop."""


def main() -> int:
    """Run both and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--least", type=float, default=0.95, help="ratio below which this fails")
    options = parser.parse_args()
    logging.disable()
    source = TakingTurns(bare_step(options.device, bf16=options.bf16))
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            data=DataConfig(path="", seq_len=SEQ_LEN, global_batch_size=GLOBAL_BATCH),
            model=MODEL,
            parallel=ParallelConfig(dtype="bf16" if options.bf16 else "fp32"),
            run=RunConfig(out=folder, max_steps=options.steps + WARM_UP + 1, device=options.device, log_interval=1),
            metrics=MetricsConfig(plot=False),
        )
        run_training(config, source=source)
    bare, trainer = (statistics.median(seconds[WARM_UP:]) for seconds in (source.bare_seconds, source.trainer_seconds))
    tokens = GLOBAL_BATCH * SEQ_LEN
    print(
        f"{MODEL.num_parameters:,} parameters, batches of {tokens:,} tokens, {options.steps} steps of each, median: "
        f"bare loop {tokens / bare:,.0f} tokens/s, trainer {tokens / trainer:,.0f} tokens/s"
    )
    print(f"trainer at {bare / trainer:.3f}x the bare loop (at least {options.least} asked for)")
    return 0 if bare / trainer >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
