"""Shapes of decoder models, published ones among them, and exactly how many parameters each part holds.

The parts matter once a model is cut: a pipeline gives the embedding to the first stage and the output head to the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes that all arithmetic of this package starts from."""

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    ffn_size: int
    vocab_size: int
    block: Literal["llama", "gpt"] = "llama"
    """`llama`: RMSNorm, RoPE, SwiGLU, no biases, own output head. `gpt`: LayerNorm, GELU, biases, tied head, position table."""
    nominal_params: float = 0.0
    """What the model is called (7e9); 0 for a shape of one's own, which is called by its exact count."""
    published_tokens: float = 0.0
    """Tokens the published model was trained on; 0 if there is none."""
    num_positions: int = 2048
    """Rows of a learned position table (`gpt` only)."""

    def __post_init__(self) -> None:
        sizes = (self.num_layers, self.hidden_size, self.num_heads, self.num_kv_heads, self.ffn_size, self.vocab_size)
        if min(sizes) < 1:
            raise ValueError(f"{self.name}: every size must be at least 1, got {sizes}")
        if self.hidden_size % self.num_heads or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.name}: num_heads {self.num_heads} must divide hidden_size {self.hidden_size}, "
                f"and num_kv_heads {self.num_kv_heads} must divide num_heads"
            )

    @property
    def kv_size(self) -> int:
        """Width of the keys (and of the values) of one token."""
        return self.hidden_size // self.num_heads * self.num_kv_heads

    @property
    def layer_params(self) -> int:
        """Parameters of one block."""
        h, f = self.hidden_size, self.ffn_size
        if self.block == "gpt":
            return 4 * h * h + 2 * h * f + (4 * h) + (f + h) + (4 * h)
        return 2 * h * h + 2 * h * self.kv_size + 3 * h * f + 2 * h

    @property
    def embedding_params(self) -> int:
        """Parameters of the token embedding, with learned positions where there are any."""
        rows = self.vocab_size + (self.num_positions if self.block == "gpt" else 0)
        return rows * self.hidden_size

    @property
    def head_params(self) -> int:
        """Parameters after the last block: the final norm, and the output matrix unless it is the embedding itself."""
        return 2 * self.hidden_size if self.block == "gpt" else (self.vocab_size + 1) * self.hidden_size

    @property
    def num_params(self) -> int:
        """All parameters, exactly."""
        return self.num_layers * self.layer_params + self.embedding_params + self.head_params

    @property
    def called_params(self) -> float:
        """The number people use: nominal for a published shape, else exact."""
        return self.nominal_params or float(self.num_params)


SHAPES = {
    shape.name: shape
    for shape in (
        # LLaMA, arXiv:2302.13971, table 2.
        ModelShape(
            name="llama-7b",
            num_layers=32,
            hidden_size=4096,
            num_heads=32,
            num_kv_heads=32,
            ffn_size=11008,
            vocab_size=32000,
            nominal_params=7e9,
            published_tokens=1.0e12,
        ),
        ModelShape(
            name="llama-13b",
            num_layers=40,
            hidden_size=5120,
            num_heads=40,
            num_kv_heads=40,
            ffn_size=13824,
            vocab_size=32000,
            nominal_params=13e9,
            published_tokens=1.0e12,
        ),
        # Llama 2, arXiv:2307.09288: the 70B has grouped queries.
        ModelShape(
            name="llama-70b",
            num_layers=80,
            hidden_size=8192,
            num_heads=64,
            num_kv_heads=8,
            ffn_size=28672,
            vocab_size=32000,
            nominal_params=70e9,
            published_tokens=2.0e12,
        ),
        # GPT-3, arXiv:2005.14165, table 2.1.
        ModelShape(
            name="gpt3-175b",
            num_layers=96,
            hidden_size=12288,
            num_heads=96,
            num_kv_heads=96,
            ffn_size=49152,
            vocab_size=50257,
            block="gpt",
            nominal_params=175e9,
            published_tokens=300e9,
        ),
    )
}


def nearest_shape(num_params: float) -> ModelShape:
    """The published shape whose nominal size is nearest in ratio.

    Example:
        `nearest_shape(6.5e9).name == "llama-7b"`

    Raises:
        ValueError: if `num_params` is not positive.
    """
    if num_params <= 0:
        raise ValueError(f"the number of parameters must be positive, got {num_params:g}")
    return min(SHAPES.values(), key=lambda shape: abs(math.log(shape.nominal_params / num_params)))


def llama_ffn_size(hidden_size: int) -> int:
    """SwiGLU width that keeps 8 h^2 parameters: 8 h / 3 rounded up to a multiple of 256 (llama-7b: 11008)."""
    return -(-(8 * hidden_size // 3) // 256) * 256
