"""Batch: what the model gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

IGNORED_LABEL = -100
"""Label that `torch.nn.functional.cross_entropy` skips by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some consecutive samples of one step of one data-parallel rank. The tensors are contiguous and nobody else's."""

    input_ids: Tensor
    """(num_samples, seq_len) int64."""
    labels: Tensor
    """(num_samples, seq_len) int64: the token after each input, or -100 where no loss is wanted."""
    step: int
    """Global step that the samples belong to."""
    first: int
    """Position of the first sample among this rank's samples of the step."""
    position_ids: Tensor | None = None
    """(num_samples, seq_len) int64: position inside the document, counted from the sample's start in its first document."""
    document_ids: Tensor | None = None
    """(num_samples, seq_len) int64: 0, 1, ... within each sample."""
    cu_seqlens: Tensor | None = None
    """(num_pieces + 1,) int32: where pieces of documents start in the flattened batch, and its length at the end."""
    max_seqlen: int | None = None
    """Length of the longest such piece, in tokens."""

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The batch on a device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The batch in page-locked memory, from which copies to a GPU can overlap with work."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        moved: dict[str, Any] = {
            f.name: function(value) for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved)
