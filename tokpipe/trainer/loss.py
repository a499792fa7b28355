"""The loss: cross-entropy summed over tokens, on whole logits or on vocabulary shards.

Losses are *summed*, and divided once by the number of counted tokens of the global batch. Averages of averages would weigh a
token by how many neighbours its micro-batch or rank happens to count.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tokpipe.trainer.step import IGNORED


class TokenLoss(nn.Module):
    """Cross-entropy in nats, summed over the tokens that count."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(batch, seq, vocab) logits and (batch, seq) int64 labels to a (1,) fp32 sum."""
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")[None]


class VocabParallelLoss(nn.Module):
    """The same from logits whose vocabulary is cut over tensor-parallel ranks: three numbers a token travel, not the logits."""

    def __init__(self, group: dist.ProcessGroup, *, vocab_size: int) -> None:
        super().__init__()
        self.group = group
        # As `torch.chunk` cuts, and so as DTensor cut the head.
        self.start = min(dist.get_rank(group) * -(-vocab_size // dist.get_world_size(group)), vocab_size)

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(batch, seq, vocab shard) logits and (batch, seq) int64 labels to a (1,) fp32 sum, the same on every rank."""
        flat = labels.flatten()
        # mypy: `apply` is untyped in PyTorch.
        summed: Tensor = _VocabParallelCrossEntropy.apply(logits.flatten(0, 1), flat - self.start, flat, self.group)  # type: ignore[no-untyped-call]
        return summed[None]


class _VocabParallelCrossEntropy(torch.autograd.Function):
    """log(sum(exp(logits))) - logit of the label, each term reduced over the shards.

    Source: Megatron-LM, arXiv:1909.08053, section 3 (fusing the parallel output with the cross-entropy).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, shifted: Tensor, labels: Tensor, group: dist.ProcessGroup) -> Tensor:
        """(tokens, shard) logits; `shifted` labels count from the shard's first column; returns a scalar."""
        scores = logits.float()
        largest = scores.amax(dim=-1)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        scores = scores - largest[:, None]
        here = (shifted >= 0) & (shifted < scores.shape[-1])
        column = torch.where(here, shifted, 0)
        at_label = torch.where(here, scores.gather(-1, column[:, None])[:, 0], 0.0)
        probabilities = scores.exp_()
        normalizer = probabilities.sum(dim=-1)
        both = torch.stack([at_label, normalizer])
        dist.all_reduce(both, group=group)
        at_label, normalizer = both[0], both[1]
        probabilities /= normalizer[:, None]
        counted = labels != IGNORED
        ctx.save_for_backward(probabilities, column, here, counted)
        ctx.logits_dtype = logits.dtype
        return torch.where(counted, normalizer.log() - at_label, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """softmax minus one-hot, on this shard's columns: nothing to send."""
        probabilities, column, here, counted = ctx.saved_tensors
        gradient = probabilities * counted[:, None]
        gradient.scatter_add_(-1, column[:, None], -here[:, None].to(gradient.dtype))
        return (gradient * grad).to(ctx.logits_dtype), None, None, None
