"""From a dataset on disk to what a training step takes, and what a checkpoint has to remember of it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, cast

import torch
from torch.distributed.device_mesh import DeviceMesh

from tokpipe.dataset import Batch, TokenDataset, TokenLoader, check_replicas
from tokpipe.trainer.config import DataConfig
from tokpipe.trainer.step import StepBatch


def as_step_batch(batch: Batch) -> StepBatch:
    """The dataset's batch as the model takes it."""
    return StepBatch(inputs=batch.input_ids, labels=batch.labels, document_ids=batch.document_ids)


class DatasetSource:
    """Steps of a `TokenDataset` through its loader, which prefetches in a thread."""

    def __init__(
        self, config: DataConfig, *, seed: int, mesh: DeviceMesh | None, micro_batch_size: int, device: torch.device
    ) -> None:
        dataset = TokenDataset(
            config.path,
            seq_len=config.seq_len,
            global_batch_size=config.global_batch_size,
            weights=dict(config.weights) or None,
            seed=seed,
            documents=config.document_mask,
            mask_document_starts=config.document_mask,
            mesh=mesh,
        )
        self._mesh = mesh
        self._loader = TokenLoader(dataset, micro_batch_size, pin_memory=device.type == "cuda")
        self._steps: Generator[Batch, None, None] | None = None

    def next_step(self) -> StepBatch:
        """The samples of the next step; the first ones are compared over the ranks that have to read the same."""
        if self._steps is not None:
            return as_step_batch(next(self._steps))
        self._steps = cast("Generator[Batch, None, None]", self._loader.steps())
        batch = next(self._steps)
        if self._mesh is not None:
            check_replicas(batch, self._mesh)
        return as_step_batch(batch)

    def state_dict(self) -> dict[str, Any]:
        """The loader's state: dataset, plan, phases, step."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; raises `StateMismatchError` if it belongs to another dataset or plan."""
        self.close()
        self._loader.load_state_dict(state)

    def close(self) -> None:
        """Stop prefetching."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None
