"""Checkpoints that any layout can go on from, written while training goes on.

    OUT/checkpoints/
      step-00000300/         tensors in PyTorch's distributed format: every rank writes what it owns
        __0_0.distcp ...     masters, momentum and variance, whole or in pieces
        .metadata            where each piece lies; written last by rank 0
        trainer.json         step, loader state, seed, settings
      latest                 the name of the newest complete checkpoint, replaced in one move

`latest` is written when everything before it is on the disk, so a crash at any instant leaves the previous one valid.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from tokpipe.errors import TrainerError
from tokpipe.trainer.config import CheckpointConfig
from tokpipe.trainer.world import World, from_rank_zero

logger = logging.getLogger(__name__)

LATEST = "latest"
STATE_FILE = "trainer.json"
STATE_VERSION = 1
ALONE = "torch.distributed is disabled, unavailable or uninitialized"
"""PyTorch warns of what is meant when one process saves, from a thread where a local filter would not reach."""


class HostCopy(AsyncStager):
    """Copies tensors to host memory before the writing thread starts.

    PyTorch's own deep-copies, which fails for a DTensor whose local part is a view into a larger buffer, as owned chunks are.
    """

    _synchronize_after_execute = False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The same names with copies in host memory."""
        return {name: tensor.clone() if tensor.device.type == "cpu" else tensor.cpu() for name, tensor in state_dict.items()}

    def synchronize_staging(self) -> None:
        """Nothing: `stage` returns when everything is copied."""

    def close(self) -> None:
        """Nothing is held."""


class Checkpoints:
    """Saves and restores one run's checkpoints. Every method is collective, apart from `poll` and `wait`."""

    def __init__(self, folder: Path, config: CheckpointConfig, world: World) -> None:
        self.folder = folder
        self._config = config
        self._world = world
        self._pending: tuple[Future[Any], Path] | None = None
        self.last_saved_step = -1
        if not world.distributed:
            warnings.filterwarnings("ignore", message=ALONE, category=UserWarning)

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Begin to save after `step` steps; an earlier save is waited for first.

        With `asynchronous`, the tensors are copied to host memory before this returns, and written by a thread.

        Args:
            step: Steps done.
            tensors: `ParallelModel.checkpoint_state()`.
            state: What else resuming needs, plain JSON values, the same on every rank.
        """
        self.wait()
        folder = self.folder / f"step-{step:08d}"
        if self._world.rank == 0:
            # A leftover of a run that died, or that was set back to an older checkpoint: its index must not outlive its tensors.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)  # Another rank's writer may have made it since.
            record = {"version": STATE_VERSION, "step": step, **state}
            _write_atomically(folder / STATE_FILE, json.dumps(record, indent=2))
        writer = FileSystemWriter(folder)
        group, alone = self._world.checkpoint_group, not self._world.distributed
        if self._config.asynchronous:
            future = async_save(dict(tensors), storage_writer=writer, process_group=group, no_dist=alone, async_stager=HostCopy())
            self._pending = (cast("Future[Any]", future), folder)
        else:
            save(dict(tensors), storage_writer=writer, process_group=group, no_dist=alone)
            self._complete(folder)
        self.last_saved_step = step

    def poll(self) -> None:
        """Complete a save that its thread has finished; cheap, call it every step.

        Raises:
            TrainerError: if writing failed.
        """
        if self._pending is not None and self._pending[0].done():
            self.wait()

    def wait(self) -> None:
        """Wait for a save in flight and complete it.

        Raises:
            TrainerError: if writing failed.
        """
        if self._pending is None:
            return
        future, folder = self._pending
        self._pending = None
        try:
            future.result()
        except (Exception, CheckpointException) as error:
            raise TrainerError(
                f"rank {self._world.rank}: the checkpoint {folder} could not be written: {_reason(error)}"
            ) from error
        self._complete(folder)

    def latest(self) -> Path | None:
        """The newest complete checkpoint as rank 0 sees it, or None."""
        found = str(latest_checkpoint(self.folder) or "") if self._world.rank == 0 else ""
        name = from_rank_zero(self._world, found)
        return Path(name) if name else None

    def load(self, folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Load into live tensors, whatever layout saved them, and return the rest of the state.

        Raises:
            TrainerError: if the checkpoint is damaged or of another model.
        """
        state = read_state(folder)
        try:
            load(
                cast("dict[str, Any]", tensors),
                storage_reader=FileSystemReader(folder),
                process_group=self._world.checkpoint_group,
                no_dist=not self._world.distributed,
            )
        except (Exception, CheckpointException) as error:
            raise TrainerError(
                f"rank {self._world.rank}: {folder} cannot be loaded: {_reason(error)}. If it is "
                f"damaged, write the name of an older checkpoint into {folder.parent / LATEST}."
            ) from error
        return state

    def _complete(self, folder: Path) -> None:
        """Point `latest` to a checkpoint that is on the disk in full, then remove what is too old."""
        if self._world.rank != 0:
            return
        _write_atomically(self.folder / LATEST, folder.name + "\n")
        logger.info("saved %s", folder)
        done = sorted(path for path in self.folder.glob("step-*") if path.name <= folder.name)
        complete = [path for path in done if (path / ".metadata").exists()]
        for old in set(done) - set(complete[-self._config.keep :]):
            shutil.rmtree(old)


def load_alone(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors, whole ones, from a checkpoint of any layout; no process group takes part."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=ALONE, category=UserWarning)
        load(cast("dict[str, Any]", tensors), storage_reader=FileSystemReader(folder), no_dist=True)


def _reason(error: BaseException) -> str:
    """The first failure behind PyTorch's collective exception, without its traceback."""
    failures = error.failures if isinstance(error, CheckpointException) else {}
    inner = next(iter(failures.values()))[0] if failures else error
    return str(inner).strip() or type(inner).__name__


def latest_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that `latest` names, or None where nothing was saved.

    Raises:
        TrainerError: if it names one that is not there.
    """
    pointer = folder / LATEST
    if not pointer.exists():
        return None
    found = folder / pointer.read_text(encoding="utf-8").strip()
    if not (found / ".metadata").exists():
        there = ", ".join(sorted(path.parent.name for path in folder.glob("step-*/.metadata"))) or "none"
        raise TrainerError(
            f"{pointer} names {found.name}, which is not complete. Complete ones: {there}. Write one of them into it."
        )
    return found


def read_state(folder: Path) -> dict[str, Any]:
    """What a checkpoint holds besides tensors.

    Raises:
        TrainerError: if it cannot be read or is of another version.
    """
    path = folder / STATE_FILE
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise TrainerError(f"{path}: cannot be read ({error}); is {folder} a checkpoint of `tokpipe train`?") from error
    if state.get("version") != STATE_VERSION:
        raise TrainerError(f"{path}: version {state.get('version')}, but this tokpipe reads version {STATE_VERSION}")
    return state


def _write_atomically(path: Path, text: str) -> None:
    side = path.with_name(path.name + ".part")
    with side.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    side.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
