"""The block that the activation formula s·b·h·(34 + 5·a·s/h) was made for, as plain as can be; it serves to be measured.

LayerNorm, attention that keeps its scores, a feed-forward of width 4h with GELU, dropout with masks of one byte an element.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _ByteDropout(torch.autograd.Function):
    """Dropout as fused kernels do it: the mask is kept in one byte an element, and nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        mask = torch.rand(x.shape) >= rate
        ctx.save_for_backward(mask)
        ctx.scale = 1 / (1 - rate)
        return x * mask * ctx.scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grad * mask * ctx.scale, None


class ChapterBlock(nn.Module):
    """(batch, seq, hidden) to the same shape."""

    def __init__(self, hidden: int, heads: int, rate: float = 0.1) -> None:
        super().__init__()
        self.heads, self.rate = heads, rate
        self.first_norm, self.second_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, hidden = x.shape
        query, key, value = (
            t.view(batch, seq, self.heads, -1).transpose(1, 2) for t in self.qkv(self.first_norm(x)).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-2, -1) * (hidden // self.heads) ** -0.5
        weights = _ByteDropout.apply(scores.softmax(dim=-1), self.rate)
        attended = (weights @ value).transpose(1, 2).reshape(batch, seq, hidden)
        x = x + _ByteDropout.apply(self.output(attended), self.rate)
        return x + _ByteDropout.apply(self.down(F.gelu(self.up(self.second_norm(x)))), self.rate)
