"""AdamW on fp32 masters against PyTorch's own, clipping, and what decays."""

from __future__ import annotations

import jobs
import pytest
import torch

from tokpipe.errors import LayoutError
from tokpipe.trainer.mesh import ParallelConfig
from tokpipe.trainer.optimizer import OptimizerConfig


def test_update_equals_a_bare_loop_with_torch_adamw():
    trained = jobs.build(ParallelConfig())
    bare = jobs.build(ParallelConfig()).parts[0]
    weights = dict(bare.named_parameters())
    groups = [
        {"params": [p for p in weights.values() if p.dim() > 1], "weight_decay": jobs.ADAMW.weight_decay},
        {"params": [p for p in weights.values() if p.dim() == 1], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=jobs.ADAMW.lr, betas=jobs.ADAMW.betas, eps=jobs.ADAMW.eps)
    # Hooks move what `backward` accumulates into buckets, so gradients are taken from autograd directly.
    for step in range(3):
        batch = jobs.global_batch(step)
        result = trained.train_step(batch)
        loss = bare(batch.inputs, labels=batch.labels).sum() / (batch.labels != -100).sum()
        for param, gradient in zip(weights.values(), torch.autograd.grad(loss, list(weights.values())), strict=True):
            param.grad = gradient
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), jobs.ADAMW.max_grad_norm)
        adamw.step()
        assert result.loss == pytest.approx(loss.item(), abs=1e-6)
        assert result.grad_norm == pytest.approx(float(norm), abs=2e-6)


def test_bf16_parameters_are_the_rounded_masters():
    model = jobs.build(ParallelConfig(dtype="bf16"))
    for step in range(2):
        model.train_step(jobs.global_batch(step))
    masters = model.checkpoint_state()
    for name, param in model.parts[0].named_parameters():
        assert param.dtype == torch.bfloat16
        assert torch.equal(param, masters[f"weights.{name}"].bfloat16())
    moved = masters["weights.head.weight"] - masters["weights.head.weight"].bfloat16().float()
    assert moved.abs().max() > 0  # the masters carry more than the parameters show


def test_clipping_scales_the_step_of_plain_descent():
    config = OptimizerConfig(kind="sgd", lr=1.0, weight_decay=0.0, max_grad_norm=0.1)
    model = jobs.build(ParallelConfig(), optimizer=config)
    before = {name: p.detach().clone() for name, p in model.parts[0].named_parameters()}
    norm = model.train_step(jobs.global_batch(0)).grad_norm
    moved = sum(float((p - before[name]).detach().square().sum()) for name, p in model.parts[0].named_parameters()) ** 0.5
    assert norm > 0.1
    assert moved == pytest.approx(0.1, rel=1e-4)


def test_norms_do_not_decay():
    # Clipped to nothing: what moves a weight is decay alone.
    config = OptimizerConfig(kind="sgd", lr=0.1, weight_decay=0.5, max_grad_norm=1e-12)
    model = jobs.build(ParallelConfig(), optimizer=config)
    before = {name: p.detach().clone() for name, p in model.parts[0].named_parameters()}
    model.train_step(jobs.global_batch(0))
    for name, param in model.parts[0].named_parameters():
        kept = 1.0 if "norm" in name else 1 - 0.1 * 0.5
        torch.testing.assert_close(param.detach(), before[name] * kept, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "changes",
    [{"kind": "lion"}, {"max_grad_norm": 0.0}, {"lr": -1.0}, {"eps": 0.0}, {"weight_decay": -0.1}],
)
def test_impossible_settings_are_refused(changes):
    with pytest.raises(LayoutError, match="optimizer"):
        OptimizerConfig(**changes)
