"""What a layer keeps for its backward pass, in bytes, and what it computes again, in matrix products."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from chapter_block import ChapterBlock
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tokpipe.estimate.activations import MicroBatch, llama_layer_bytes, standard_layer_bytes
from tokpipe.estimate.shapes import ModelShape
from tokpipe.trainer.model import ModelConfig, Transformer
from tokpipe.trainer.recompute import apply_recompute, plain_name

S, B, H, A, KV, F = 128, 2, 128, 8, 4, 352
SHAPE = ModelShape(
    name="small", num_layers=1, hidden_size=H, num_heads=A, num_kv_heads=KV, ffn_size=F, vocab_size=64, block="llama"
)


class SavedBytes:
    """Bytes of every distinct storage that autograd keeps, parameters aside."""

    def __init__(self, module: nn.Module) -> None:
        self._known = {p.untyped_storage().data_ptr() for p in module.parameters()}
        # The tensors themselves are held, so that no freed address is used twice.
        self._kept: dict[int, Tensor] = {}

    def hook(self) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t)

    def _pack(self, tensor: Tensor) -> Tensor:
        self._kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def total(self) -> int:
        return sum(t.untyped_storage().nbytes() for key, t in self._kept.items() if key not in self._known)


class _FusedNorm(torch.autograd.Function):
    """RMSNorm as CUDA's fused kernel keeps it: input and one fp32 scale a token. The CPU's keeps fp32 copies of the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = (x.float().square().mean(dim=-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return (x * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise NotImplementedError("only measured")


def bytes_per_layer(attention: str, recompute: str) -> float:
    """Saved bytes of two more layers, halved: what the layers share, and embedding and loss, cancel out."""

    def saved(num_layers: int) -> int:
        config = ModelConfig(
            num_layers=num_layers,
            hidden_size=H,
            num_heads=A,
            num_kv_heads=KV,
            ffn_size=F,
            vocab_size=64,
            attention=attention,
        )
        model = Transformer(config).to(torch.bfloat16)
        apply_recompute(model, recompute)
        counter = SavedBytes(model)
        with counter.hook():
            kept_alive = model(torch.zeros(B, S, dtype=torch.int64), labels=torch.zeros(B, S, dtype=torch.int64))
        assert kept_alive.requires_grad
        return counter.total()

    return (saved(4) - saved(2)) / 2


@pytest.mark.parametrize(
    ("attention", "recompute", "kind"),
    [
        ("sdpa", "none", "flash"),
        ("sdpa", "selective", "flash"),
        ("unfused", "none", "unfused"),
        ("unfused", "selective", "unfused"),
    ],
)
def test_llama_block_keeps_what_the_estimate_says(monkeypatch, attention, recompute, kind):
    monkeypatch.setattr(nn.RMSNorm, "forward", lambda self, x: _FusedNorm.apply(x, self.weight, self.eps))
    batch = MicroBatch(seq_len=S, size=B)
    assert bytes_per_layer(attention, recompute) == llama_layer_bytes(SHAPE, batch, recompute, kind)


@pytest.mark.parametrize("attention", ["sdpa", "unfused"])
def test_full_recomputation_keeps_the_block_input_alone(attention):
    assert bytes_per_layer(attention, "full") == 2 * S * B * H


def test_selective_recomputation_drops_the_scores_of_unfused_attention():
    dropped = bytes_per_layer("unfused", "none") - bytes_per_layer("unfused", "selective")
    assert dropped == 2 * A * S * S * B


@pytest.mark.parametrize(("seq_len", "hidden", "heads"), [(64, 256, 4), (128, 128, 8), (256, 128, 4)])
def test_standard_block_keeps_what_the_chapter_says(seq_len, hidden, heads):
    block = ChapterBlock(hidden, heads).to(torch.bfloat16)
    x = torch.randn(B, seq_len, hidden, dtype=torch.bfloat16, requires_grad=True)
    counter = SavedBytes(block)
    with counter.hook():
        block(x).sum()
    shape = ModelShape(
        name="gpt",
        num_layers=1,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        ffn_size=4 * hidden,
        vocab_size=64,
        block="gpt",
    )
    expected = standard_layer_bytes(shape, MicroBatch(seq_len=seq_len, size=B))
    assert expected == seq_len * B * hidden * (34 + 5 * heads * seq_len / hidden)
    assert counter.total() == pytest.approx(expected, rel=0.04)


class OperatorCounter(TorchDispatchMode):
    """Counts dispatched operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func).split(".")[1]] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("recompute", "products", "attentions"),
    [
        ("none", 3 * 29, 4),  # 7 a block and the head: forward, and two in the backward pass
        ("selective", 3 * 29, 8),
        ("full", 3 * 29 + 4 * 6, 8),  # each block's last product is not needed again: 28 % more, not 33 %
    ],
)
def test_recomputation_runs_forward_again_where_it_says(recompute, products, attentions):
    config = ModelConfig(num_layers=4, hidden_size=32, num_heads=4, num_kv_heads=2, ffn_size=48, vocab_size=64)
    model = Transformer(config)
    apply_recompute(model, recompute)
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    with OperatorCounter() as counter:
        model(tokens, labels=tokens).sum().backward()
    assert counter.counts["mm"] == products
    assert counter.counts["_scaled_dot_product_flash_attention_for_cpu"] == attentions


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_changes_neither_names_nor_gradients(recompute):
    config = ModelConfig(num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, ffn_size=48, vocab_size=64)
    torch.manual_seed(0)
    plain = Transformer(config)
    wrapped = Transformer(config)
    wrapped.load_state_dict(plain.state_dict())
    apply_recompute(wrapped, recompute)
    tokens = torch.arange(32).view(2, 16)
    for model in (plain, wrapped):
        model(tokens, labels=tokens).sum().backward()
    gradients = {plain_name(name): p.grad for name, p in wrapped.named_parameters()}
    assert list(gradients) == [name for name, _ in plain.named_parameters()]
    assert all(torch.equal(p.grad, gradients[name]) for name, p in plain.named_parameters())
