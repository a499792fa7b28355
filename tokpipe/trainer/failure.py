"""When training stops itself: a loss that is not finite or jumps, and a SIGTERM that asks for a last checkpoint."""

from __future__ import annotations

import contextlib
import math
import signal
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType

import torch

from tokpipe.errors import TrainingStoppedError
from tokpipe.trainer.step import IGNORED, EvalResult, StepBatch, StepResult

WINDOW = 64
"""Steps whose median loss a jump is measured from."""


class StopRequest:
    """Set by SIGTERM (Slurm before a time limit, a cloud before it takes the machine back); asked at every step's end."""

    def __init__(self) -> None:
        self.requested = False

    def ignore_from_now(self) -> None:
        """Let SIGTERM end the process again: the run has failed, and whoever started it should not have to wait."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True

    @contextlib.contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Listen while the block runs; outside the main thread, where Python allows no handlers, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        previous = signal.signal(signal.SIGTERM, self._on_signal)
        try:
            yield self
        finally:
            signal.signal(signal.SIGTERM, previous)


class LossGuard:
    """Tells whether a step's loss can be right."""

    def __init__(self, *, max_jump: float) -> None:
        self._max_jump = max_jump
        self._recent: deque[float] = deque(maxlen=WINDOW)

    def complaint(self, result: StepResult) -> str | None:
        """What is wrong with the step in words, or None; good losses are remembered."""
        if not (math.isfinite(result.loss) and math.isfinite(result.grad_norm) and result.applied):
            return f"loss {result.loss}, gradient norm {result.grad_norm}: not finite, weights were not touched"
        if self._max_jump and len(self._recent) >= WINDOW // 4:
            usual = statistics.median(self._recent)
            if result.loss > usual + self._max_jump:
                return (
                    f"loss {result.loss:.3f} is {result.loss - usual:.3f} nats above the median {usual:.3f} of the last "
                    f"{len(self._recent)} steps (failure.max_loss_jump = {self._max_jump:g})"
                )
        self._recent.append(result.loss)
        return None


def losses_by_replica(eval_loss: Callable[[StepBatch], EvalResult], batch: StepBatch, *, dp: int, dp_rank: int) -> list[float]:
    """Each data-parallel rank's mean loss on its share of a batch; collective.

    The loss of a step is a sum over all replicas. To see which one spoils it, the batch is run once per replica with every other
    replica's labels ignored.
    """
    losses = []
    for replica in range(dp):
        labels = batch.labels if replica == dp_rank else torch.full_like(batch.labels, IGNORED)
        result = eval_loss(StepBatch(inputs=batch.inputs, labels=labels, document_ids=batch.document_ids))
        losses.append(result.loss_sum / max(1, result.num_tokens))
    return losses


def worst_replica(losses: list[float]) -> int:
    """The first replica whose loss is not finite, else the one with the highest."""
    broken = [replica for replica, loss in enumerate(losses) if not math.isfinite(loss)]
    return broken[0] if broken else max(range(len(losses)), key=losses.__getitem__)


def stopped(complaint: str, *, step: int, rank: int, dp_rank: int, positions: range, sample_command: str) -> TrainingStoppedError:
    """The error of a run that stops itself, with what is needed to look at the batch."""
    return TrainingStoppedError(
        f"rank {rank}, step {step}: {complaint}. The batch is at fault, or the learning rate. The worst share is data-parallel "
        f"rank {dp_rank}'s, positions {positions.start} to {positions.stop - 1} of the global batch; look at it with:\n"
        f"  {sample_command}\nThe checkpoints are untouched; the same command goes on from the last one."
    )
