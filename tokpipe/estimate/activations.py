"""Bytes of activations that a block keeps for its backward pass, with each kind of recomputation.

Two blocks, because they keep different tensors:

* the *standard* block of the paper (LayerNorm, 4h GELU, dropout masks, unfused attention): s b h (34 + 5 a s / h);
* the *LLaMA* block that `tokpipe train` runs (RMSNorm, RoPE, SwiGLU, grouped queries, fused or unfused attention).

Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198, sections 4 and 5.
Names: s sequence length, b micro-batch, h hidden size, a heads, k width of keys, f ffn width, t tensor-parallel ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokpipe.estimate.shapes import ModelShape

Recompute = Literal["none", "selective", "full"]
Attention = Literal["flash", "unfused"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What passes through a block at once."""

    seq_len: int
    size: int = 1
    """Samples."""
    tp: int = 1
    sequence_parallel: bool = True
    """With it everything in a block is divided by `tp`; without it what lies outside attention and MLP is not."""


def standard_layer_bytes(shape: ModelShape, batch: MicroBatch, recompute: Recompute = "none") -> float:
    """Bytes per layer of the standard block.

    Example:
        llama-7b, 2,048 tokens, one sample: 956.3 MB; with full recomputation 2 s b h = 16.8 MB.
    """
    s, t, h = batch.seq_len, batch.tp, shape.hidden_size
    sbh = s * batch.size * h
    if recompute == "full":
        return 2 * sbh / (t if batch.sequence_parallel else 1)
    scores = 5 * shape.num_heads * s / h if recompute == "none" else 0.0
    if batch.sequence_parallel:
        return sbh * (34 + scores) / t
    return sbh * (10 + (24 + scores) / t)


def llama_layer_bytes(
    shape: ModelShape,
    batch: MicroBatch,
    recompute: Recompute = "none",
    attention: Attention = "flash",
    *,
    fused_norm: bool = True,
) -> float:
    """Bytes per layer of the LLaMA block in bf16, every distinct tensor saved for backward counted once.

    Outside attention and MLP (s/t with sequence parallel): the inputs and outputs of two norms, 2 h each, and their fp32 scales,
    4 bytes a token each. Without a fused RMSNorm (PyTorch on CPU) a norm keeps two fp32 copies, 8 h, instead of its input.
    In attention (a/t heads): queries and output 2 h, keys and values 2 k each, and either the fused kernel's fp32 log-sum-exp of
    4 a, or the unfused softmax of 2 a s.
    In the MLP (f/t): gate, its SiLU, up, and their product, 2 f each.
    Selective recomputation drops what only the attention core needs: the softmax, or the log-sum-exp.
    """
    s, t, h, k = batch.seq_len, batch.tp, shape.hidden_size, shape.kv_size
    tokens = s * batch.size
    if recompute == "full":
        return 2 * tokens * h / (t if batch.sequence_parallel else 1)
    outside = 2 * (2 * h + (2 if fused_norm else 8) * h + 4)
    inside = 2 * 2 * h + 2 * 2 * k + 4 * 2 * shape.ffn_size
    if recompute == "none":
        inside += 4 * shape.num_heads if attention == "flash" else 2 * shape.num_heads * s
    return tokens * (outside / (t if batch.sequence_parallel else 1) + inside / t)


def layer_bytes(shape: ModelShape, batch: MicroBatch, recompute: Recompute = "none", attention: Attention = "flash") -> float:
    """Bytes per layer of the block that the shape names."""
    if shape.block == "gpt":
        return standard_layer_bytes(shape, batch, recompute)
    return llama_layer_bytes(shape, batch, recompute, attention)


def logits_bytes(shape: ModelShape, batch: MicroBatch) -> float:
    """Bytes of the last stage's logits: bf16, their fp32 copy and its gradient, split over the vocabulary."""
    return batch.seq_len * batch.size * shape.vocab_size * (2 + 4 + 4) / batch.tp
