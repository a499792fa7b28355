"""One small object that trains: loss, gradient accumulation, clipping and update, whatever the layout.

The loop gives it a batch and gets a `StepResult`. It holds this rank's model parts (several under the interleaved schedule) and
one optimizer for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from tokpipe.trainer.mesh import ParallelConfig, axis_group, axis_rank, check_sequence
from tokpipe.trainer.model import Transformer
from tokpipe.trainer.optimizer import MasterOptimizer
from tokpipe.trainer.pipeline_parallel import Schedule, build_schedule, build_stage, hidden_shape, stages_of_rank
from tokpipe.trainer.step import (
    IGNORED,
    EvalResult,
    StepBatch,
    StepResult,
    mask_labels_across_documents,
    positions_in_documents,
)
from tokpipe.trainer.weights import local_tensor
from tokpipe.trainer.zero import GradientReducer


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Model state this rank holds at one moment, in bytes; Adam's step counters (4 bytes a tensor) are left out."""

    parameters: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer


class ParallelModel:
    """This rank's share of a model, and how to train it. Made by `parallelize`.

    Attributes:
        parts: The model parts of this pipeline rank, in order of depth.
        optimizers: One per part.
    """

    def __init__(
        self,
        *,
        config: ParallelConfig,
        mesh: DeviceMesh | None,
        device: torch.device,
        parts: Sequence[Transformer],
        optimizers: Sequence[MasterOptimizer],
        reducer: GradientReducer,
    ) -> None:
        self.config = config
        self.mesh = mesh
        self.device = device
        self.parts = list(parts)
        self.optimizers = list(optimizers)
        self._reducer = reducer
        self._schedules: dict[torch.Size, Schedule] = {}
        self._num_tokens = torch.ones((), device=device)

    def train_step(self, batch: StepBatch) -> StepResult:
        """One update from one batch. Nothing is updated if the loss or the gradient's norm is not finite.

        Collective: every rank calls it with its replica's batch.
        """
        loss, num_tokens = self.forward_backward(batch)
        norm = self.gradient_norm()
        values = torch.stack([loss.double(), norm, num_tokens.double()]).tolist()
        applied = bool(torch.isfinite(torch.tensor(values[:2])).all())
        if applied:
            self.apply_gradients(values[1])
        else:
            for optimizer in self.optimizers:
                optimizer.zero_gradients()
        return StepResult(loss=values[0], grad_norm=values[1], num_tokens=int(values[2]), applied=applied)

    def forward_backward(self, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """Accumulate the gradient of the mean loss over the global batch; when it returns, reductions have arrived.

        Returns:
            The mean loss and the number of tokens that count, both scalars on the device, the same on every rank.
        """
        batch, positions = self._prepare(batch)
        num_tokens = self._sum((batch.labels != IGNORED).sum(), "dp")
        self._num_tokens = num_tokens.clamp(min=1)
        self._reducer.start_step()
        run = self._run_schedule if self.config.pp > 1 else self._accumulate
        losses = run(batch, positions)
        self._reducer.finish_step()
        return self._sum(losses, "dp", "pp"), num_tokens

    def gradient_norm(self) -> Tensor:
        """L2 norm of the whole model's gradient, a scalar fp64 on the device, the same on every rank."""
        squared = torch.stack([optimizer.squared_norm() for optimizer in self.optimizers]).sum()
        if self.mesh is not None:
            dist.all_reduce(squared)
        return squared.sqrt()

    def apply_gradients(self, norm: float) -> None:
        """Clip by the gradient's norm, update, and forget the gradients."""
        for optimizer in self.optimizers:
            optimizer.update(min(1.0, optimizer.config.max_grad_norm / (norm + 1e-6)))

    @torch.no_grad()
    def eval_loss(self, batch: StepBatch) -> EvalResult:
        """Loss without gradients. Collective; each replica may bring its own samples, in the shape of training batches."""
        batch, positions = self._prepare(batch)
        num_tokens = self._sum((batch.labels != IGNORED).sum(), "dp")
        self._num_tokens = torch.ones((), device=self.device)
        if self.config.pp > 1:
            total = self._run_schedule(batch, positions)
        else:
            total = torch.stack([self._loss(*piece) for piece in self._micro_batches(batch, positions)]).sum()
        values = torch.stack([self._sum(total, "dp", "pp").double(), num_tokens.double()]).tolist()
        return EvalResult(loss_sum=values[0], num_tokens=int(values[1]))

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next update."""
        for optimizer in self.optimizers:
            optimizer.set_lr(lr)

    def checkpoint_state(self) -> dict[str, Tensor]:
        """What `torch.distributed.checkpoint` saves, or loads into: the live tensors, in fp32.

        `weights.<name>` (the masters), `exp_avg.<name>`, `exp_avg_sq.<name>`, and the scalar `optimizer_step` (int64, a copy).
        Names are those of the plain `Transformer` whatever the layout, tensors are DTensors where they are cut: a checkpoint of
        one layout loads into any other. bf16 parameters are not in it: they are the rounded masters. After loading, call
        `after_load`.
        """
        state: dict[str, Tensor] = {}
        for optimizer in self.optimizers:
            state |= optimizer.checkpoint_state()
        state["optimizer_step"] = torch.tensor(self.optimizers[0].get_step())
        return state

    def after_load(self, optimizer_step: int) -> None:
        """Take over what was loaded into `checkpoint_state()`'s tensors; collective.

        Args:
            optimizer_step: The loaded `optimizer_step`.
        """
        for optimizer in self.optimizers:
            optimizer.after_load(optimizer_step)

    def state_bytes(self) -> StateBytes:
        """Bytes of parameters, gradients and optimizer state on this rank, now."""
        params = [local_tensor(w.param) for o in self.optimizers for group in o.groups for w in group.weights]
        held = [t for optimizer in self.optimizers for t in optimizer.state_tensors()]
        return StateBytes(
            parameters=sum(t.numel() * t.element_size() for t in params),
            gradients=sum(group.gradient_bytes() for o in self.optimizers for group in o.groups),
            optimizer=sum(t.numel() * t.element_size() for t in held),
        )

    def _prepare(self, batch: StepBatch) -> tuple[StepBatch, Tensor]:
        batch = batch.to(self.device)
        samples, seq_len = batch.inputs.shape
        if samples % self.config.num_micro_batches:
            raise ValueError(
                f"{samples} samples cannot be cut into num_micro_batches={self.config.num_micro_batches} equal pieces"
            )
        check_sequence(seq_len, self.config)
        if batch.document_ids is None:
            return batch, torch.arange(seq_len, device=self.device).repeat(samples, 1)
        labels = mask_labels_across_documents(batch.labels, batch.document_ids)
        batch = StepBatch(inputs=batch.inputs, labels=labels, document_ids=batch.document_ids)
        return batch, positions_in_documents(cast(Tensor, batch.document_ids))

    def _micro_batches(self, batch: StepBatch, positions: Tensor) -> list[tuple[Tensor, Tensor, Tensor | None, Tensor]]:
        count = self.config.num_micro_batches
        ids = [None] * count if batch.document_ids is None else batch.document_ids.chunk(count)
        return list(zip(batch.inputs.chunk(count), positions.chunk(count), ids, batch.labels.chunk(count), strict=True))

    def _loss(self, inputs: Tensor, positions: Tensor, document_ids: Tensor | None, labels: Tensor) -> Tensor:
        loss: Tensor = self.parts[0](inputs, positions=positions, document_ids=document_ids, labels=labels)
        return loss.sum()

    def _accumulate(self, batch: StepBatch, positions: Tensor) -> Tensor:
        total = torch.zeros((), device=self.device)
        for piece in self._micro_batches(batch, positions):
            loss = self._loss(*piece) / self._num_tokens
            torch.autograd.backward(loss)
            self._reducer.finish_micro_batch()
            total += loss.detach()
        return total

    def _run_schedule(self, batch: StepBatch, positions: Tensor) -> Tensor:
        """Let the pipeline run, forward only where gradients are off; the loss on the last stage's ranks, 0 on others."""
        schedule = self._schedule(batch.inputs.shape)
        stages = stages_of_rank(axis_rank(self.mesh, "pp"), self.config)
        first, last = stages[0] == 0, stages[-1] == self.config.num_stages - 1
        args = (batch.inputs,) if first else ()
        losses: list[Tensor] | None = [] if last else None
        kwargs: dict[str, Any] = {"positions": positions, "labels": batch.labels}
        if batch.document_ids is not None:
            kwargs["document_ids"] = batch.document_ids
        run = schedule.step if torch.is_grad_enabled() else schedule.eval
        run(*args, target=batch.labels if last else None, losses=losses, **kwargs)
        return torch.stack(losses).sum().detach() if losses else torch.zeros((), device=self.device)

    def _schedule(self, shape: torch.Size) -> Schedule:
        """The schedule for batches of one shape: its receive buffers have fixed sizes."""
        if shape not in self._schedules:
            tokens = torch.Size([shape[0] // self.config.num_micro_batches, shape[1]])
            hidden = hidden_shape(self.parts[0].config, self.config, tokens)
            group = cast(dist.ProcessGroup, axis_group(self.mesh, "pp"))
            numbers = stages_of_rank(axis_rank(self.mesh, "pp"), self.config)
            stages = [
                build_stage(part, number, self.config, tokens=tokens, hidden=hidden, device=self.device, group=group)
                for part, number in zip(self.parts, numbers, strict=True)
            ]
            self._schedules[shape] = build_schedule(self.config, stages, lambda summed, _: summed.sum() / self._num_tokens)
        return self._schedules[shape]

    def _sum(self, value: Tensor, *axes: str) -> Tensor:
        value = value.detach().clone()
        for axis in axes:
            group = axis_group(self.mesh, axis)
            if group is not None:
                dist.all_reduce(value, group=group)
        return value
