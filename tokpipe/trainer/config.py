"""Everything a training run is told, one frozen dataclass per concern, filled from a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tokpipe.errors import LayoutError, RecipeError
from tokpipe.trainer.mesh import ParallelConfig, check_sequence
from tokpipe.trainer.model import ModelConfig
from tokpipe.trainer.optimizer import OptimizerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """What is read."""

    path: str
    """Dataset folder (with `dataset.json`)."""
    seq_len: int
    """Tokens per sample."""
    global_batch_size: int
    """Samples per optimizer step, over all replicas."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Share of each source in every batch; empty: all sources as they come."""
    document_mask: bool = False
    """Attention stays inside a document, and a document's last token predicts nothing."""

    def __post_init__(self) -> None:
        if self.seq_len < 1 or self.global_batch_size < 1:
            raise ValueError(f"seq_len and global_batch_size must be at least 1, got {self.seq_len} and {self.global_batch_size}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate moves between 0 and the optimizer's `lr`."""

    kind: Literal["cosine", "wsd", "constant"] = "cosine"
    """`cosine` falls all the way; `wsd` is warm-up, stable, decay; `constant` stays after the warm-up."""
    warmup_steps: int = 0
    """Steps of linear rise."""
    decay_steps: int = 0
    """`wsd` only: the last steps, in which the rate falls."""
    min_ratio: float = 0.1
    """What is left at the end, as a share of the peak."""

    def __post_init__(self) -> None:
        if min(self.warmup_steps, self.decay_steps) < 0 or not 0 <= self.min_ratio <= 1:
            raise ValueError("warmup_steps and decay_steps must not be negative, and min_ratio must be in [0, 1]")
        if (self.kind == "wsd") != (self.decay_steps > 0):
            raise ValueError(
                f"kind {self.kind!r} and decay_steps {self.decay_steps} do not go together: wsd alone has a decay phase"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Where, how long, on what."""

    out: str
    """Folder of this run: checkpoints, metrics, plot, resolved recipe."""
    max_steps: int
    """Optimizer steps in all."""
    seed: int = 0
    """One seed for weights and data order."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: CUDA where there is one."""
    log_interval: int = 10
    """Steps between two lines."""
    eval_interval: int = 0
    """Steps between two validations; 0: only at the end."""
    max_eval_batches: int = 0
    """Batches per source and validation; 0: every held-out sample."""

    def __post_init__(self) -> None:
        if self.max_steps < 1 or self.log_interval < 1:
            raise ValueError(f"max_steps and log_interval must be at least 1, got {self.max_steps} and {self.log_interval}")
        if min(self.seed, self.eval_interval, self.max_eval_batches) < 0:
            raise ValueError("seed, eval_interval and max_eval_batches must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """When the state is saved, and how much of it is kept."""

    interval: int = 0
    """Steps between two checkpoints; 0: only at the end and when asked to stop."""
    keep: int = 3
    """Checkpoints kept; older ones are removed once a newer one is complete."""
    asynchronous: bool = True
    """Write in a thread while training goes on."""

    def __post_init__(self) -> None:
        if self.interval < 0 or self.keep < 1:
            raise ValueError(f"interval must not be negative and keep at least 1, got {self.interval} and {self.keep}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Where the numbers go, besides the line and `metrics.jsonl`."""

    tensorboard: bool = False
    """Needs the extra `tensorboard`."""
    plot: bool = True
    """Save `loss.png` at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureConfig:
    """When a run gives up."""

    timeout_seconds: float = 300.0
    """A collective that takes longer fails; a lost or stuck rank ends the job within twice this time."""
    max_loss_jump: float = 0.0
    """Stop if the loss is this many nats above the median of the last 64 steps; 0: only if it is not finite."""

    def __post_init__(self) -> None:
        if self.timeout_seconds <= 0 or self.max_loss_jump < 0:
            raise ValueError("timeout_seconds must be positive and max_loss_jump must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A whole run."""

    data: DataConfig
    model: ModelConfig
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    run: RunConfig
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    failure: FailureConfig = field(default_factory=FailureConfig)

    def __post_init__(self) -> None:
        batch, one = self.data.global_batch_size, self.parallel.dp * self.parallel.num_micro_batches
        if batch % one:
            raise LayoutError(
                f"data.global_batch_size {batch} is not a multiple of dp {self.parallel.dp} x num_micro_batches "
                f"{self.parallel.num_micro_batches} = {one}; the next that is: {(batch // one + 1) * one}"
            )
        check_sequence(self.data.seq_len, self.parallel)
        phases = self.schedule.warmup_steps + self.schedule.decay_steps
        if self.schedule.decay_steps and phases > self.run.max_steps:
            raise RecipeError(
                f"schedule: {self.schedule.warmup_steps} warm-up and {self.schedule.decay_steps} decay steps do not fit into "
                f"run.max_steps {self.run.max_steps}"
            )

    @property
    def micro_batch_size(self) -> int:
        """Samples per forward pass of one replica."""
        return self.data.global_batch_size // (self.parallel.dp * self.parallel.num_micro_batches)
