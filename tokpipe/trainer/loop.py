"""The training loop: data, step, metrics, checkpoint, and a way out for everything that can go wrong."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from tokpipe.errors import TokpipeError, TrainingStoppedError
from tokpipe.trainer.checkpoint import Checkpoints
from tokpipe.trainer.config import TrainConfig
from tokpipe.trainer.failure import LossGuard, StopRequest, losses_by_replica, stopped, worst_replica
from tokpipe.trainer.mesh import grid_coordinates
from tokpipe.trainer.metrics import Metrics
from tokpipe.trainer.monitor import Monitor
from tokpipe.trainer.parallel_model import ParallelModel
from tokpipe.trainer.resume import restore, saved_state
from tokpipe.trainer.schedule import lr_at
from tokpipe.trainer.source import StepSource
from tokpipe.trainer.step import EvalResult, StepBatch, StepResult
from tokpipe.trainer.validate import Batches, validate
from tokpipe.trainer.world import World, any_rank

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSummary:
    """What a run did, the same on every rank."""

    first_step: int
    """Steps that were done before: 0, or those of the checkpoint."""
    last_step: int
    """Steps done now."""
    loss: float
    """Training loss of the last step; NaN if none was made."""
    losses: tuple[float, ...]
    """Training loss of every step made by this run."""
    validation: Mapping[str, float]
    """Last validation loss per source and of `all`; empty if there was none."""
    stopped_early: bool
    """Asked to stop by SIGTERM."""
    out: str


class TrainingLoop:
    """Steps from wherever the run stands to its end. All parts come from outside, so that tests can give their own."""

    def __init__(
        self,
        config: TrainConfig,
        *,
        world: World,
        model: ParallelModel,
        source: StepSource,
        held_out: Mapping[str, Batches],
        metrics: Metrics,
        checkpoints: Checkpoints,
        monitor: Monitor,
        stop: StopRequest,
    ) -> None:
        self._config = config
        self._world = world
        self._model = model
        self._source = source
        self._held_out = held_out
        self._metrics = metrics
        self._checkpoints = checkpoints
        self._monitor = monitor
        self._stop = stop
        self._guard = LossGuard(max_jump=config.failure.max_loss_jump)
        self._validation: dict[str, float] = {}
        self._losses: list[float] = []

    def run(self) -> TrainSummary:
        """Restore, train, save.

        Raises:
            TrainingStoppedError: for a loss that cannot be right, or a lost or stuck rank.
        """
        try:
            return self._run()
        except TokpipeError:
            raise
        except (RuntimeError, dist.DistError) as error:
            if not self._world.distributed:
                raise
            self._stop.ignore_from_now()
            raise TrainingStoppedError(self._monitor.explain(error)) from error

    def _run(self) -> TrainSummary:
        config = self._config
        first = restore(checkpoints=self._checkpoints, model=self._model)
        step, stopped_early = first, False
        while step < config.run.max_steps and not stopped_early:
            step = self._one_step(step)
            if _due(step, config.run.eval_interval) and step < config.run.max_steps:
                self._validate(step)
            self._checkpoints.poll()
            stopped_early = any_rank(self._world, self._stop.requested)
            if stopped_early or (_due(step, config.checkpoint.interval) and step < config.run.max_steps):
                self._save(step)
        return self._finish(first, step, stopped_early=stopped_early)

    def _finish(self, first: int, step: int, *, stopped_early: bool) -> TrainSummary:
        if not stopped_early and step > first:
            self._validate(step)
            self._save(step)
        self._monitor.mark(step, "save")
        self._checkpoints.wait()
        self._monitor.mark(step, "stop")
        if stopped_early:
            logger.info("stopped by SIGTERM after step %d; the same command goes on from there", step)
        return TrainSummary(
            first_step=first,
            last_step=step,
            loss=self._losses[-1] if self._losses else float("nan"),
            losses=tuple(self._losses),
            validation=self._validation,
            stopped_early=stopped_early,
            out=self._config.run.out,
        )

    def _one_step(self, step: int) -> int:
        """Do one step; returns how many are done then."""
        config = self._config
        started = time.perf_counter()
        self._monitor.mark(step, "data")
        batch = self._source.next_step()
        waited = time.perf_counter() - started
        self._monitor.mark(step, "step")
        lr = lr_at(step, config.schedule, peak=config.optimizer.lr, max_steps=config.run.max_steps)
        self._model.set_lr(lr)
        result = self._model.train_step(batch)
        seconds = time.perf_counter() - started
        complaint = self._guard.complaint(result)
        if complaint is not None:
            raise self._stopped(complaint, step, batch)
        self._losses.append(result.loss)
        self._monitor.mark(step, "log")
        self._report(step, result, lr=lr, seconds=seconds, waited=waited)
        return step + 1

    def _report(self, step: int, result: StepResult, *, lr: float, seconds: float, waited: float) -> None:
        tokens = self._config.data.global_batch_size * self._config.data.seq_len
        self._metrics.step_done(step + 1, result, tokens=tokens, lr=lr, seconds=seconds, wait_seconds=waited)

    def _validate(self, step: int) -> None:
        def eval_loss(batch: StepBatch) -> EvalResult:
            self._monitor.mark(step, "validate")  # Each batch is a sign of progress: a whole pass may take any time.
            return self._model.eval_loss(batch)

        self._monitor.mark(step, "validate")
        self._validation = validate(eval_loss, self._held_out, max_batches=self._config.run.max_eval_batches)
        if self._validation:
            self._metrics.validated(step, self._validation)

    def _save(self, step: int) -> None:
        self._monitor.mark(step, "save")
        self._checkpoints.save(step, self._model.checkpoint_state(), saved_state(self._config, self._source))

    def _stopped(self, complaint: str, step: int, batch: StepBatch) -> TrainingStoppedError:
        """Find the replica that spoils the loss, and say how to look at its samples."""
        parallel, data = self._config.parallel, self._config.data
        _, dp_rank, _ = grid_coordinates(parallel, self._world.rank)
        self._monitor.mark(step, "validate")
        worst = worst_replica(losses_by_replica(self._model.eval_loss, batch, dp=parallel.dp, dp_rank=dp_rank))
        self._checkpoints.wait()
        share = data.global_batch_size // parallel.dp
        return stopped(
            complaint,
            step=step,
            rank=self._world.rank,
            dp_rank=worst,
            positions=range(worst * share, (worst + 1) * share),
            sample_command=sample_command(self._config, step=step, dp_rank=worst),
        )


def sample_command(config: TrainConfig, *, step: int, dp_rank: int) -> str:
    """The `tokpipe sample` command line that shows what one replica read at a step."""
    data = config.data
    weights = ",".join(f"{name}={weight!r}" for name, weight in data.weights.items())
    return (
        f"tokpipe sample {shlex.quote(data.path)} --step {step} --rank {dp_rank} --dp {config.parallel.dp} "
        f"--seq-len {data.seq_len} --global-batch-size {data.global_batch_size} --seed {config.run.seed}"
        + (f" --weights {shlex.quote(weights)}" if weights else "")
    )


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def describe(summary: TrainSummary) -> dict[str, Any]:
    """A summary as plain JSON values."""
    return {
        "first_step": summary.first_step,
        "last_step": summary.last_step,
        "loss": summary.loss if summary.losses else None,  # JSON knows no NaN
        "validation": dict(summary.validation),
        "stopped_early": summary.stopped_early,
        "out": summary.out,
    }
