"""Where a training loop gets its batches, whatever lies behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

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
