"""What is saved besides tensors, and what has to agree before a run goes on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokpipe.errors import TrainerError
from tokpipe.trainer.checkpoint import Checkpoints, read_state
from tokpipe.trainer.config import TrainConfig
from tokpipe.trainer.parallel_model import ParallelModel
from tokpipe.trainer.source import StepSource

logger = logging.getLogger(__name__)

FREE_OF_LAYOUT = ("max_seq_len", "attention", "init_std")
"""Model settings that may change between runs: no tensor depends on them."""


def saved_state(config: TrainConfig, source: StepSource) -> dict[str, Any]:
    """Loader state, seed and settings. The schedule is a function of the step, so its settings are all there is to save."""
    parallel = config.parallel
    return {
        "loader": source.state_dict(),
        "seed": config.run.seed,
        "model": asdict(config.model),
        "optimizer": asdict(config.optimizer),
        "schedule": asdict(config.schedule),
        "max_steps": config.run.max_steps,
        "data_path": config.data.path,
        "layout": {"pp": parallel.pp, "dp": parallel.dp, "tp": parallel.tp, "zero": parallel.zero, "dtype": parallel.dtype},
    }


def go_to_last_checkpoint(config: TrainConfig, *, checkpoints: Checkpoints, source: StepSource) -> None:
    """Set the loader to where the latest checkpoint was saved, if there is one; writes nothing; collective.

    Raises:
        TrainerError: if the checkpoint is of another model or seed.
        StateMismatchError: if it read other data.
    """
    folder = checkpoints.latest()
    if folder is not None:
        state = read_state(folder)
        check_agreement(config, state, folder)
        source.load_state_dict(state["loader"])


def restore(*, checkpoints: Checkpoints, model: ParallelModel) -> int:
    """Load the latest checkpoint's tensors, if there is one, into the model; collective.

    Returns:
        Steps done.

    Raises:
        TrainerError: if the checkpoint is damaged.
    """
    folder = checkpoints.latest()
    if folder is None:
        return 0
    tensors = model.checkpoint_state()
    state = checkpoints.load(folder, tensors)
    model.after_load(int(tensors["optimizer_step"]))
    logger.info("resumed from %s (saved as %s)", folder, state["layout"])
    return int(state["step"])


def check_agreement(config: TrainConfig, state: Mapping[str, Any], folder: Path) -> None:
    """Refuse a checkpoint that this recipe cannot go on from; say what else has changed.

    Raises:
        TrainerError: naming each difference in model or seed.
    """
    now, then = asdict(config.model), state["model"]
    differences = [
        f"model.{name} was {then.get(name)!r}, is {value!r}"
        for name, value in now.items()
        if name not in FREE_OF_LAYOUT and then.get(name) != value
    ]
    if state["seed"] != config.run.seed:
        differences.append(f"run.seed was {state['seed']}, is {config.run.seed}")
    if differences:
        raise TrainerError(
            f"{folder} belongs to another run: {'; '.join(differences)}. Put the recipe back, or choose another run.out."
        )
    for name, value in (("optimizer", asdict(config.optimizer)), ("schedule", asdict(config.schedule))):
        changed = [key for key, old in state[name].items() if _plain(value.get(key)) != old]
        if changed:
            logger.info("changed since %s: %s", folder.name, ", ".join(f"{name}.{key}" for key in changed))
    if state["max_steps"] != config.run.max_steps:
        logger.info("changed since %s: run.max_steps %s -> %s", folder.name, state["max_steps"], config.run.max_steps)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
