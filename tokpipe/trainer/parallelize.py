"""Parallelism, applied to a plain model from outside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from tokpipe.trainer.mesh import ParallelConfig
from tokpipe.trainer.model import ModelConfig
from tokpipe.trainer.step import EvalResult, StepBatch, StepResult


class ParallelModel:
    """What the loop trains."""

    parts: list[nn.Module]
    optimizers: list[Any]

    def train_step(self, batch: StepBatch) -> StepResult:
        """forward_backward + apply_gradients. Not applied if loss or norm is not finite."""
        ...

    def forward_backward(self, batch: StepBatch) -> tuple[Tensor, int]:
        """Accumulate and reduce gradients; (global mean loss, counted tokens)."""
        ...

    def apply_gradients(self) -> float:
        """Clip, update, gather; returns the gradient norm."""
        ...

    def eval_loss(self, batch: StepBatch) -> EvalResult:
        """No gradients. Same shapes as training."""
        ...

    def set_lr(self, lr: float) -> None:
        """Set the learning rate."""
        ...

    def checkpoint_state(self) -> dict[str, Tensor]:
        """Flat dict for torch.distributed.checkpoint, sharing memory with the live state (save it; or dcp.load into it).

        `weights.<name>` fp32 master weights, `exp_avg.<name>`, `exp_avg_sq.<name>`, and `optimizer_step` (scalar int64 tensor).
        Names are those of Transformer.named_parameters() whatever the layout; DTensors where sharded. bf16 parameters are not
        in it: they are the rounded masters.
        """
        ...

    def after_load(self) -> None:
        """Call after dcp.load wrote into `checkpoint_state()`'s tensors: refresh bf16 parameters, Adam's step."""
        ...


def parallelize(
    model_config: ModelConfig,
    parallel: ParallelConfig,
    optimizer: Any,  # OptimizerConfig(lr, betas, eps, weight_decay, max_grad_norm, kind="adamw"|"sgd") in trainer/optimizer.py
    *,
    mesh: DeviceMesh | None,
    device: torch.device,
    seed: int,
) -> ParallelModel:
    """Build the model for this rank and apply everything in the stated order."""
    ...
