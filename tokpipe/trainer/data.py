"""From a dataset on disk to what a training step takes, and what a checkpoint has to remember of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch.distributed.device_mesh import DeviceMesh

from tokpipe.dataset import Batch, TokenDataset, TokenLoader
from tokpipe.trainer.config import DataConfig
from tokpipe.trainer.step import StepBatch


class StepSource(Protocol):
    """Gives this replica's share of the global batch, step after step."""

    def next_step(self) -> StepBatch:
        """The samples of the next step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, after what was delivered; plain JSON values, the same on every rank."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        ...

    def close(self) -> None:
        """Stop prefetching."""
        ...


def as_step_batch(batch: Batch) -> StepBatch:
    """The dataset's batch as the model takes it."""
    return StepBatch(inputs=batch.input_ids, labels=batch.labels, document_ids=batch.document_ids)


class DatasetSource:
    """Steps of a `TokenDataset` through its loader, which prefetches in a thread."""

    def __init__(self, config: DataConfig, *, seed: int, mesh: DeviceMesh | None) -> None:
        dataset = TokenDataset(
            config.path,
            seq_len=config.seq_len,
            global_batch_size=config.global_batch_size,
            weights=dict(config.weights) or None,
            seed=seed,
            documents=config.document_mask,
            mesh=mesh,
        )
        self._loader = TokenLoader(dataset)
        self._steps: Iterator[Batch] | None = None

    def next_step(self) -> StepBatch:
        """The samples of the next step."""
        if self._steps is None:
            self._steps = iter(self._loader.steps())
        return as_step_batch(next(self._steps))

    def state_dict(self) -> dict[str, Any]:
        """The loader's state: dataset, plan, phases, step."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; raises `StateMismatchError` if it belongs to another dataset or plan."""
        self._steps = None
        self._loader.load_state_dict(dict(state))

    def close(self) -> None:
        """Stop prefetching."""
        self._loader.close()
