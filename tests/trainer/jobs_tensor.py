"""Jobs for tensor parallel: the vocabulary-parallel loss against the plain one, and weights that must stay equal."""

from __future__ import annotations

import jobs
import torch
from torch.distributed.tensor import DTensor

from tokpipe.errors import LayoutError
from tokpipe.trainer.loss import TokenLoss, VocabParallelLoss
from tokpipe.trainer.mesh import ParallelConfig, axis_group
from tokpipe.trainer.step import IGNORED, StepBatch


def loss_difference(vocab_size: int, dtype: torch.dtype) -> tuple[float, float]:
    """Largest difference of loss and gradient between the vocabulary-parallel loss over 2 ranks and the plain one."""
    group = axis_group(jobs.mesh_for(ParallelConfig(dp=4, tp=2)), "tp")
    generator = torch.Generator().manual_seed(5)
    logits = (20 * torch.randn(3, 7, vocab_size, generator=generator)).to(dtype)
    labels = torch.randint(0, vocab_size, (3, 7), generator=generator)
    labels[0, :5] = IGNORED
    labels[1, 0], labels[1, 1] = 0, vocab_size - 1
    whole = logits.clone().requires_grad_()
    expected = TokenLoss()(whole, labels)
    (3 * expected).backward()
    rank = torch.distributed.get_rank(group)
    part = logits.chunk(2, dim=-1)[rank].clone().requires_grad_()
    loss = VocabParallelLoss(group, vocab_size=vocab_size)(part, labels)
    (3 * loss).backward()
    gradient = whole.grad.chunk(2, dim=-1)[rank]
    return float((loss - expected).abs()), float((part.grad - gradient).abs().max())


def replicated_weights(config: ParallelConfig) -> list[float]:
    """Sum over every weight that tensor parallel does not cut, after three steps: the same on every rank of a tp group."""
    model = jobs.build(config)
    for step in range(3):
        model.train_step(jobs.local_batch(jobs.global_batch(step), config))
    sums = []
    for name, param in model.parts[0].named_parameters():
        if "norm" in name:
            local = param.to_local() if isinstance(param, DTensor) else param
            sums.append(float(local.double().sum()))
    return sums


def local_shapes(config: ParallelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of what this rank holds of every parameter."""
    model = jobs.build(config)
    return {
        name: tuple(p.to_local().shape if isinstance(p, DTensor) else p.shape) for name, p in model.parts[0].named_parameters()
    }


def refusal_of_a_sequence(config: ParallelConfig, seq_len: int) -> str:
    """What this rank says of a batch whose samples have another length."""
    tokens = torch.zeros(2, seq_len, dtype=torch.int64)
    try:
        jobs.build(config).train_step(StepBatch(inputs=tokens, labels=tokens))
    except LayoutError as error:
        return str(error)
    return ""
