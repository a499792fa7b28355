"""A pipeline whose stages sleep instead of compute, so that two cores can play eight GPUs; and what it waits and holds."""

from __future__ import annotations

import time
from typing import Any

import jobs
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tokpipe.trainer.mesh import ParallelConfig, axis_group, axis_rank
from tokpipe.trainer.pipeline_parallel import build_schedule, build_stage, stages_of_rank

TOKENS = torch.Size([1, 4])
HIDDEN = (1, 4, 8)


class _Sleep(torch.autograd.Function):
    """Identity that takes its time, once forward and twice backward, and keeps count of what is in between."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stage: SleepingStage) -> Tensor:
        ctx.stage = stage
        time.sleep(stage.seconds)
        stage.counts.append(stage.counts[-1] + 1)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.stage.seconds)
        ctx.stage.counts.append(ctx.stage.counts[-1] - 1)
        return grad, None


class SleepingStage(nn.Module):
    """One stage: tokens or activations in, activations or a loss out."""

    def __init__(self, *, first: bool, last: bool, seconds: float, counts: list[int]) -> None:
        super().__init__()
        self.first, self.last, self.seconds = first, last, seconds
        self.counts = counts
        self.weight = nn.Parameter(torch.ones(HIDDEN[-1]))

    def forward(self, x: Tensor) -> Tensor:
        x = x[..., None] * self.weight if self.first else x * self.weight
        x = _Sleep.apply(x, self)
        return x.mean()[None] if self.last else x


def run_sleeping(config: ParallelConfig, seconds: float) -> tuple[float, int]:
    """Run a schedule; idle over ideal time of the whole pipeline, and the most micro-batches in flight on this rank."""
    mesh = jobs.mesh_for(config)
    counts = [0]
    parts, stages = [], []
    numbers = stages_of_rank(axis_rank(mesh, "pp"), config)
    for number in numbers:
        first, last = number == 0, number == config.num_stages - 1
        parts.append(SleepingStage(first=first, last=last, seconds=0.0, counts=counts))
        cpu, group = torch.device("cpu"), axis_group(mesh, "pp")
        stages.append(build_stage(parts[-1], number, config, tokens=TOKENS, hidden=HIDDEN, device=cpu, group=group))
    schedule = build_schedule(config, stages, lambda output, _: output.sum())
    tokens = torch.ones(config.num_micro_batches, 4, dtype=torch.int64)
    args = (tokens,) if numbers[0] == 0 else ()
    target = tokens if numbers[-1] == config.num_stages - 1 else None
    # The first run opens connections; it does not sleep.
    schedule.step(*args, target=target, return_outputs=False)
    for part in parts:
        part.seconds = seconds / config.virtual_stages
    dist.barrier()
    start = time.perf_counter()
    schedule.step(*args, target=target, return_outputs=False)
    dist.barrier()
    taken = time.perf_counter() - start
    ideal = config.num_micro_batches * 3 * seconds
    return taken / ideal - 1, max(counts)


def stage_names(config: ParallelConfig) -> list[str]:
    """Names of this rank's parameters, part by part."""
    return [name for part in jobs.build(config).parts for name, _ in part.named_parameters()]
