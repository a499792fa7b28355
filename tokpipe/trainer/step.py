"""What goes into a training step and what comes out: the only types the training loop shares with the parallel model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100
"""The label that does not count, as in `torch.nn.functional.cross_entropy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """One replica's share of the global batch; every tensor-parallel and pipeline rank of the replica holds the same one.

    The first axis is `num_micro_batches * micro_batch_size`; every step must bring the same shapes.
    """

    inputs: Tensor
    """(samples, seq) int64 token ids."""
    labels: Tensor
    """(samples, seq) int64 next tokens; `IGNORED` where none counts."""
    document_ids: Tensor | None = None
    """(samples, seq) int64; if given, attention stays inside a document, positions restart, and labels across a boundary are
    masked. Masked here, so bring labels as they are."""

    def to(self, device: torch.device) -> StepBatch:
        """The same batch on another device."""
        ids = None if self.document_ids is None else self.document_ids.to(device, non_blocking=True)
        return StepBatch(
            inputs=self.inputs.to(device, non_blocking=True), labels=self.labels.to(device, non_blocking=True), document_ids=ids
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step did, the same on every rank."""

    loss: float
    """Mean cross-entropy in nats over the counted tokens of the global batch."""
    grad_norm: float
    """L2 norm of the whole model's gradient before clipping."""
    num_tokens: int
    """Counted tokens of the global batch."""
    applied: bool
    """False if loss or norm was not finite: then no weight was touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """A validation batch, summed over the data-parallel ranks, the same on every rank."""

    loss_sum: float
    """Cross-entropy in nats, summed over tokens."""
    num_tokens: int
    """Counted tokens."""


def positions_in_documents(document_ids: Tensor) -> Tensor:
    """Place of every token inside its document: (batch, seq) int64 ids to (batch, seq) int64 positions.

    Example:
        `[[7, 7, 7, 8, 8]]` gives `[[0, 1, 2, 0, 1]]`.
    """
    places = torch.arange(document_ids.shape[1], device=document_ids.device).expand_as(document_ids)
    starts = torch.zeros_like(document_ids)
    starts[:, 1:] = torch.where(document_ids[:, 1:] != document_ids[:, :-1], places[:, 1:], 0)
    return places - starts.cummax(dim=1).values


def mask_labels_across_documents(labels: Tensor, document_ids: Tensor) -> Tensor:
    """Set the label of each document's last token to `IGNORED`: what follows belongs to another document.

    The label of a sample's last token is kept: `document_ids` does not say whether its document goes on.
    """
    masked = labels.clone()
    masked[:, :-1][document_ids[:, 1:] != document_ids[:, :-1]] = IGNORED
    return masked
