"""AdamW on the chunks a rank owns, with fp32 masters, and clipping by the norm over all ranks.

The optimizer sees plain fp32 tensors: one master per owned chunk, and it keeps their momentum and variance. For fp32 parameters
the master is the parameter's own memory; for bf16 it is a copy, and each update is rounded back into the parameter. Gradients
become fp32 block by block, so that an update never holds more than one block's.

Bytes per parameter in bf16: 4 master + 4 momentum + 4 variance, over as many ranks as share the parameter (Adam's step counter,
4 bytes a tensor, aside).

Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", arXiv:1711.05101.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from tokpipe.errors import LayoutError
from tokpipe.trainer.weights import OwnedWeight, local_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """How weights move."""

    kind: Literal["adamw", "sgd"] = "adamw"
    """`sgd` is plain gradient descent: slow, but it shows a wrongly scaled gradient, which Adam hides."""
    lr: float = 3e-4
    """Peak learning rate; the schedule sets it every step."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of momentum and variance."""
    eps: float = 1e-8
    """Added to the root of the variance."""
    weight_decay: float = 0.1
    """Pull towards zero, on matrices only: norms are left alone."""
    max_grad_norm: float = 1.0
    """Gradients with a larger norm are scaled down to it."""

    def __post_init__(self) -> None:
        if self.kind not in ("adamw", "sgd"):
            raise LayoutError(f"optimizer.kind must be 'adamw' or 'sgd', got {self.kind!r}")
        if self.max_grad_norm <= 0 or self.lr < 0 or self.eps <= 0 or self.weight_decay < 0:
            raise LayoutError("optimizer: lr and weight_decay must not be negative, eps and max_grad_norm must be positive")


class WeightGroup(Protocol):
    """The weights of one block: a `GradientBucket` or a `FullyShardedGroup`."""

    weights: list[OwnedWeight]

    def gradients(self) -> list[Tensor]:
        """Reduced gradients of the owned chunks."""
        ...

    def zero_gradients(self) -> None:
        """Forget them."""
        ...

    def start_gather(self) -> None:
        """Send updated chunks."""
        ...

    def finish_gather(self) -> None:
        """Receive the others'."""
        ...

    def gradient_bytes(self) -> int:
        """Bytes held now."""
        ...


class MasterOptimizer:
    """One model part's optimizer."""

    def __init__(self, groups: Sequence[WeightGroup], config: OptimizerConfig) -> None:
        self.groups = list(groups)
        self.config = config
        self._masters = [[_master(weight) for weight in group.weights] for group in self.groups]
        owned = zip(self.groups, self._masters, strict=True)
        pairs = [pair for group, masters in owned for pair in zip(group.weights, masters, strict=True)]
        self._names = {weight.name: (weight, master) for weight, master in pairs}
        decay = [master for weight, master in pairs if weight.param.dim() > 1]
        plain = [master for weight, master in pairs if weight.param.dim() <= 1]
        param_groups = [{"params": decay, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        param_groups = [group for group in param_groups if group["params"]]
        self._torch: torch.optim.Optimizer
        if config.kind == "sgd":
            self._torch = torch.optim.SGD(param_groups, lr=config.lr)
        else:
            self._torch = torch.optim.AdamW(param_groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
            for master in [*decay, *plain]:
                # As AdamW would on its first step; made now so that a checkpoint has somewhere to load into.
                self._torch.state[master] = {
                    "step": torch.zeros((), dtype=torch.float32, device=master.device),
                    "exp_avg": torch.zeros_like(master),
                    "exp_avg_sq": torch.zeros_like(master),
                }

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of every group."""
        for group in self._torch.param_groups:
            group["lr"] = lr

    def update(self, scale: float) -> None:
        """Update every owned chunk from `scale` times its gradient, then give the new parameters to all ranks.

        A block's parameters travel while the next block is updated.
        """
        before: WeightGroup | None = None
        for group, masters in zip(self.groups, self._masters, strict=True):
            for master, gradient in zip(masters, group.gradients(), strict=True):
                if master.numel():
                    gradient = gradient.float().contiguous()
                    master.grad = gradient if scale == 1.0 else gradient * scale
            self._torch.step()
            for weight, master in zip(group.weights, masters, strict=True):
                master.grad = None
                _write_back(weight, master)
            group.zero_gradients()
            group.start_gather()
            if before is not None:
                before.finish_gather()
            before = group
        if before is not None:
            before.finish_gather()

    def zero_gradients(self) -> None:
        """Forget the gradients without an update."""
        for group in self.groups:
            group.zero_gradients()

    def squared_norm(self) -> Tensor:
        """This rank's share of the squared gradient norm, fp64: summed over all ranks, every element counts once."""
        total = torch.zeros((), dtype=torch.float64, device=self._masters[0][0].device)
        for group in self.groups:
            for weight, gradient in zip(group.weights, group.gradients(), strict=True):
                total += torch.linalg.vector_norm(gradient, dtype=torch.float64) ** 2 / weight.num_holders
        return total

    def checkpoint_state(self) -> dict[str, Tensor]:
        """`weights.<name>` and, for AdamW, `exp_avg.<name>` and `exp_avg_sq.<name>`, fp32, in the live tensors' memory."""
        state: dict[str, Tensor] = {}
        for name, (weight, master) in self._names.items():
            state[f"weights.{name}"] = weight.describe(master.detach())
            for key in ("exp_avg", "exp_avg_sq"):
                if key in self._torch.state[master]:
                    state[f"{key}.{name}"] = weight.describe(self._torch.state[master][key])
        return state

    def get_step(self) -> int:
        """Updates so far, as AdamW counts them."""
        return next((int(s["step"].item()) for s in self._torch.state.values() if "step" in s), 0)

    def after_load(self, step: int) -> None:
        """Take over what was loaded into the tensors of `checkpoint_state`."""
        for state in self._torch.state.values():
            if "step" in state:
                state["step"].fill_(step)
        for group, masters in zip(self.groups, self._masters, strict=True):
            for weight, master in zip(group.weights, masters, strict=True):
                _write_back(weight, master)
            group.start_gather()
            group.finish_gather()

    def state_tensors(self) -> Iterator[Tensor]:
        """What the optimizer holds beside the parameters: masters that are copies, momentum, variance."""
        for weight, master in self._names.values():
            if not _shares_memory(weight, master):
                yield master
            yield from (t for key, t in self._torch.state[master].items() if key != "step" and isinstance(t, Tensor))


def _master(weight: OwnedWeight) -> Tensor:
    owned = weight.owned(local_tensor(weight.param))
    return owned if owned.dtype == torch.float32 and owned.is_contiguous() else owned.to(torch.float32, copy=True).contiguous()


def _shares_memory(weight: OwnedWeight, master: Tensor) -> bool:
    return local_tensor(weight.param).untyped_storage().data_ptr() == master.untyped_storage().data_ptr()


def _write_back(weight: OwnedWeight, master: Tensor) -> None:
    if not _shares_memory(weight, master):
        weight.owned(local_tensor(weight.param)).copy_(master)
