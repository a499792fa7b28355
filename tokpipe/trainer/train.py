"""`run_training`: put a run together from its config, run it, take it apart."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from torch.distributed import is_torchelastic_launched
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.elastic.multiprocessing.errors import record

from tokpipe.errors import TrainerError
from tokpipe.recipe import fill, read_tables, to_toml
from tokpipe.shards import read_manifest
from tokpipe.trainer.checkpoint import Checkpoints, latest_checkpoint, read_state
from tokpipe.trainer.config import TrainConfig
from tokpipe.trainer.data import DatasetSource
from tokpipe.trainer.failure import StopRequest
from tokpipe.trainer.loop import TrainingLoop, TrainSummary
from tokpipe.trainer.mesh import build_mesh, describe_mesh
from tokpipe.trainer.metrics import JsonLines, Metrics, Sink, Speedometer, TensorBoard, read_metrics
from tokpipe.trainer.monitor import Monitor
from tokpipe.trainer.parallelize import parallelize
from tokpipe.trainer.plot import plot_losses
from tokpipe.trainer.resume import go_to_last_checkpoint
from tokpipe.trainer.source import StepSource
from tokpipe.trainer.validate import Batches, held_out_batches
from tokpipe.trainer.world import Launch, World, any_rank, join_world

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
PLOT_FILE = "loss.png"
RECIPE_FILE = "recipe.toml"
NO_LAUNCH = Launch()


def read_train_config(path: str | Path, *, overrides: tuple[str, ...] = (), world_size: int = 1) -> TrainConfig:
    """A recipe as a config. Two things it may leave out, since they follow from elsewhere:

    `parallel.dp` is what `world_size` leaves after tp and pp; `model.vocab_size` is the dataset's.

    Raises:
        RecipeError: for an unknown key, a wrong type, or settings that contradict each other.
    """
    tables = read_tables(path, overrides=overrides)
    parallel = tables.setdefault("parallel", {})
    cut = parallel.get("tp", 1), parallel.get("pp", 1)
    if "dp" not in parallel and all(isinstance(n, int) and n > 0 for n in cut):
        parallel["dp"] = max(1, world_size // (cut[0] * cut[1]))
    data_path = tables.get("data", {}).get("path")
    if "vocab_size" not in tables.get("model", {}) and isinstance(data_path, str):
        tables.setdefault("model", {})["vocab_size"] = read_manifest(Path(data_path)).tokenizer.vocab_size
    return fill(TrainConfig, tables, where=str(path))


def run_training(
    config: TrainConfig,
    *,
    launch: Launch = NO_LAUNCH,
    source: StepSource | None = None,
    held_out: Mapping[str, Batches] | None = None,
) -> TrainSummary:
    """Train to `run.max_steps`, from the latest checkpoint in `run.out` if there is one. Every rank calls it.

    Args:
        config: The run.
        launch: How this process was started.
        source: Batches, instead of those of `data.path`.
        held_out: Validation batches per source, instead of those of `data.path`.

    Raises:
        TrainerError: if the run cannot start or go on; `TrainingStoppedError` names step, rank and positions.
    """
    # Under torchrun, leave an error where it looks for it, so that it names the first rank that failed.
    run = record(_train) if is_torchelastic_launched() else _train
    return cast(TrainSummary, run(config, launch=launch, source=source, held_out=held_out))


def _train(
    config: TrainConfig, *, launch: Launch, source: StepSource | None, held_out: Mapping[str, Batches] | None
) -> TrainSummary:
    with join_world(launch, device=config.run.device, timeout_seconds=config.failure.timeout_seconds) as world:
        mesh = build_mesh(config.parallel, world_size=world.world_size, device_type=world.device.type)
        if source is None:
            _check_vocabulary(config)
            source = DatasetSource(
                config.data, seed=config.run.seed, mesh=mesh, micro_batch_size=config.micro_batch_size, device=world.device
            )
            if held_out is None:
                held_out = held_out_batches(config.data, mesh=mesh, micro_batch_size=config.micro_batch_size)
        try:
            return _run(config, world=world, mesh=mesh, source=source, held_out=held_out or {})
        finally:
            source.close()


def _run(
    config: TrainConfig, *, world: World, mesh: DeviceMesh | None, source: StepSource, held_out: Mapping[str, Batches]
) -> TrainSummary:
    out = Path(config.run.out)
    checkpoints = Checkpoints(out / "checkpoints", config.checkpoint, world)
    go_to_last_checkpoint(config, checkpoints=checkpoints, source=source)  # Before a run that is refused overwrites anything.
    if world.rank == 0:
        _say_what_starts(config, world)
    model = parallelize(config.model, config.parallel, config.optimizer, mesh=mesh, device=world.device, seed=config.run.seed)
    monitor = Monitor(world.store, rank=world.rank, world_size=world.world_size, timeout_seconds=config.failure.timeout_seconds)
    metrics = Metrics(
        sinks=_sinks(config, world),
        speedometer=Speedometer.of(config.model, seq_len=config.data.seq_len, world_size=world.world_size, device=world.device),
        device=world.device,
        max_steps=config.run.max_steps,
        interval=config.run.log_interval,
    )
    try:
        with StopRequest().listening() as stop:
            loop = TrainingLoop(
                config,
                world=world,
                model=model,
                source=source,
                held_out=held_out,
                metrics=metrics,
                checkpoints=checkpoints,
                monitor=monitor,
                stop=stop,
            )
            any_rank(world, False)  # Every monitor has spoken before one listens.
            monitor.start()
            summary = loop.run()
    finally:
        monitor.close()
        metrics.close()
    if world.rank == 0 and config.metrics.plot:
        plot_losses(read_metrics(out / METRICS_FILE), out / PLOT_FILE)
    return summary


def _say_what_starts(config: TrainConfig, world: World) -> None:
    out = Path(config.run.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / RECIPE_FILE).write_text(to_toml(config), encoding="utf-8")
    logger.info(
        "%s parameters, %s, on %d x %s; global batch %d x %d tokens in micro-batches of %d",
        f"{config.model.num_parameters:,}",
        config.parallel.dtype,
        world.world_size,
        world.device.type,
        config.data.global_batch_size,
        config.data.seq_len,
        config.micro_batch_size,
    )
    for line in describe_mesh(config.parallel).splitlines():
        logger.info("%s", line)


def _check_vocabulary(config: TrainConfig) -> None:
    needed = read_manifest(Path(config.data.path)).tokenizer.vocab_size
    if config.model.vocab_size < needed:
        raise TrainerError(
            f"model.vocab_size {config.model.vocab_size} is smaller than the {needed} pieces of {config.data.path}'s "
            f"tokenizer; leave it out of the recipe to take {needed}, or give a larger one"
        )


def _sinks(config: TrainConfig, world: World) -> list[Sink]:
    """Where rank 0 writes; nothing on the others."""
    if world.rank != 0:
        return []
    out = Path(config.run.out)
    latest = latest_checkpoint(out / "checkpoints")
    resume_step = int(read_state(latest)["step"]) if latest is not None else 0
    sinks: list[Sink] = [JsonLines(out / METRICS_FILE, resume_step=resume_step)]
    if config.metrics.tensorboard:
        sinks.append(TensorBoard(out / "tensorboard"))
    return sinks
