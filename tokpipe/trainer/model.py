"""A LLaMA-style decoder that knows nothing of parallelism.

RMSNorm, rotary positions, SwiGLU, grouped-query attention, untied embeddings. Everything that splits it over ranks is applied
from outside (parallelize.py). Three things make that possible: layers are keyed by their global number, so a pipeline stage
that holds layers 8 to 15 keeps their names; `embedding`, `norm` and `head` may be absent; and heads are counted from the
width of the projections, so a slice of the heads works like all of them.

Source: LLaMA arXiv:2302.13971, RoPE 2104.09864, SwiGLU 2002.05202, grouped-query attention 2305.13245.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokpipe.errors import LayoutError
from tokpipe.trainer.loss import TokenLoss


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of the decoder."""

    num_layers: int
    """Transformer blocks."""
    hidden_size: int
    """Width of the residual stream; a multiple of `num_heads`."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key and value heads; a divisor of `num_heads`."""
    ffn_size: int
    """Inner width of the SwiGLU feed-forward."""
    vocab_size: int
    """Rows of the embedding and of the output head."""
    max_seq_len: int = 4096
    """Tokens per sample; written into exports, no table depends on it."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies."""
    norm_eps: float = 1e-5
    """Added to the mean square in RMSNorm."""
    init_std: float = 0.02
    """Standard deviation of initial weights; projections into the residual get it over sqrt(2 * num_layers)."""
    attention: Literal["sdpa", "unfused"] = "sdpa"
    """PyTorch's fused attention, or the textbook one that stores the (seq, seq) scores."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_size", "vocab_size", "max_seq_len"):
            if getattr(self, name) < 1:
                raise LayoutError(f"model.{name} must be at least 1, got {getattr(self, name)}")
        if self.hidden_size % self.num_heads or (self.hidden_size // self.num_heads) % 2:
            raise LayoutError(f"hidden_size={self.hidden_size} must be an even multiple of num_heads={self.num_heads}")
        if self.num_heads % self.num_kv_heads:
            raise LayoutError(f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}")
        if self.attention not in ("sdpa", "unfused"):
            raise LayoutError(f"attention must be 'sdpa' or 'unfused', got {self.attention!r}")

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.hidden_size // self.num_heads

    @property
    def num_parameters(self) -> int:
        """Every weight, embeddings included."""
        kv = self.num_kv_heads * self.head_size
        block = 2 * self.hidden_size * (self.hidden_size + kv) + 3 * self.hidden_size * self.ffn_size + 2 * self.hidden_size
        return self.num_layers * block + 2 * self.vocab_size * self.hidden_size + self.hidden_size


def rotary_angles(positions: Tensor, *, head_size: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's rotation, each (batch, seq, 1, head_size) fp32, for `rotate`."""
    exponents = torch.arange(0, head_size, 2, device=positions.device, dtype=torch.float32) / head_size
    angles = positions[..., None].float() / theta**exponents
    angles = torch.cat([angles, angles], dim=-1)[:, :, None, :]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each head of (batch, seq, heads, head_size) by its position; halves are paired as in Hugging Face's Llama."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x.float() * cos + turned * sin).type_as(x)


def document_attention_mask(document_ids: Tensor) -> Tensor:
    """Where attention may look: (batch, 1, seq, seq) bool, true for earlier tokens of the same document."""
    same = document_ids[:, :, None] == document_ids[:, None, :]
    return same.tril()[:, None]


class AttentionCore(nn.Module):
    """Softmax attention over given heads; no weights. A module of its own, so that recomputation can wrap it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attend: query (batch, heads, seq, head), key and value with kv heads, mask as `document_attention_mask` or causal."""
        groups = query.shape[1] // key.shape[1]
        if self.kind == "unfused":
            return _unfused_attention(query, key, value, mask)
        if mask is None:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=groups > 1)
        # With a mask, CUDA's fused kernels take equal head counts only; enable_gqa would fall back to storing the scores.
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def _unfused_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The textbook's attention, which keeps (heads, seq, seq) weights for its backward pass. Heads that share a key lie in one
    matrix product with it, so keys and values are never repeated."""
    kv_heads, seq_len = key.shape[1], query.shape[2]
    allowed = torch.ones(seq_len, seq_len, dtype=torch.bool, device=query.device).tril() if mask is None else mask
    # Added, not filled in: an addition keeps nothing for its backward pass.
    bias = torch.zeros(allowed.shape, dtype=query.dtype, device=query.device).masked_fill(~allowed, float("-inf"))
    grouped = (query * query.shape[-1] ** -0.5).unflatten(1, (kv_heads, -1)).flatten(2, 3)
    scores = (grouped @ key.transpose(-2, -1)).unflatten(2, (-1, seq_len)).flatten(1, 2)
    weights = (scores + bias).softmax(dim=-1)
    attended = weights.unflatten(1, (kv_heads, -1)).flatten(2, 3) @ value
    heads: Tensor = attended.unflatten(2, (-1, seq_len))
    return heads.flatten(1, 2)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_size = config.head_size
        kv_size = config.num_kv_heads * config.head_size
        self.query = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.key = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.value = nn.Linear(config.hidden_size, kv_size, bias=False)
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.core = AttentionCore(config.attention)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        # The number of heads follows from the width: under tensor parallel this rank has some of them.
        query, key, value = (proj(x).unflatten(-1, (-1, self.head_size)) for proj in (self.query, self.key, self.value))
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        attended = self.core(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask)
        return self.output(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.down = nn.Linear(config.ffn_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        return self.down(F.silu(self.gate(x)) * self.up(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        """Map (batch, seq, hidden) to the same shape."""
        x = x + self.attention(self.attention_norm(x), cos, sin, mask)
        return x + self.ffn(self.ffn_norm(x))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """The decoder, or (with parts taken out) one pipeline stage of it."""

    embedding: nn.Embedding | None
    norm: nn.RMSNorm | None
    head: nn.Linear | None
    loss: nn.Module

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleDict({str(i): Block(config) for i in range(config.num_layers)})
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.loss = TokenLoss()

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        document_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> Tensor:
        """Tokens to logits or to a loss; a stage takes hidden states if it has no embedding, returns them if it has no head.

        Args:
            x: (batch, seq) int64 token ids, or (batch, seq, hidden) hidden states.
            positions: (batch, seq) int64 place of every token, for the rotary angles; default 0, 1, 2 …
            document_ids: (batch, seq) int64; if given, attention stays inside runs of equal ids.
            labels: (batch, seq) int64 next tokens; if given, the head's logits go into the loss and no further.

        Returns:
            (1,) summed loss, (batch, seq, vocab) logits, or (batch, seq, hidden).
        """
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
        cos, sin = rotary_angles(positions, head_size=self.config.head_size, theta=self.config.rope_theta)
        mask = None if document_ids is None else document_attention_mask(document_ids)
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.layers.values():
            x = block(x, cos, sin, mask)
        if self.norm is not None:
            x = self.norm(x)
        if self.head is None:
            return x
        logits: Tensor = self.head(x)
        return logits if labels is None else self.loss(logits, labels)


def initial_weight(config: ModelConfig, name: str, shape: torch.Size, *, seed: int, device: torch.device) -> Tensor:
    """One parameter's initial value, whole, in fp32: a function of seed and name, so that every layout starts equal.

    The random numbers are drawn on `device`; CPU and CUDA give different ones.
    """
    if name.endswith("norm.weight"):
        return torch.ones(shape, device=device)
    std = config.init_std
    if name.endswith(("attention.output.weight", "ffn.down.weight")):
        std /= (2 * config.num_layers) ** 0.5
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=7).digest()
    generator = torch.Generator(device).manual_seed(int.from_bytes(digest, "little"))
    return torch.empty(shape, device=device).normal_(0.0, std, generator=generator)
