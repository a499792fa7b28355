"""ZeRO stage 3: parameters live in shards and are gathered block by block, through PyTorch's `fully_shard`.

Each block all-gathers its parameters before its forward pass, drops them, gathers them again for the backward pass, and
reduce-scatters its gradients: 3Ψ elements per rank and step instead of 2Ψ, for 16Ψ/N bytes at rest.

`fully_shard(reshard_after_forward=False)` is often called ZeRO-2. It has ZeRO-2's traffic, but not its bytes: between steps it
still holds shards only (16Ψ/N), and during one the whole parameters lie beside them (2Ψ + 16Ψ/N). The literal stage 2 is zero.py.
Under a pipeline the schedule keeps gathered parameters and whole gradients until the last micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from tokpipe.trainer.mesh import ParallelConfig
from tokpipe.trainer.model import Transformer
from tokpipe.trainer.weights import OwnedWeight, local_tensor


def storage_dtype(config: ParallelConfig) -> torch.dtype:
    """The dtype parameters are stored in.

    With fp32 gradients `fully_shard` wants fp32 shards: they are the master copy, and the gathered copy is cast. That holds
    4 + 4 + 8 bytes per parameter, not 2 + 4 + 12.
    """
    return config.grad_torch_dtype if config.zero_stage == 3 else config.param_torch_dtype


def shard_fully(model: Transformer, config: ParallelConfig, mesh: DeviceMesh) -> None:
    """Shard every block, then what is left (embedding, norm, head), over the data-parallel axis."""
    policy = MixedPrecisionPolicy(
        param_dtype=config.param_torch_dtype,
        reduce_dtype=config.grad_torch_dtype,
        cast_forward_inputs=False,  # activations have their dtype already, and the rotary angles are to stay fp32
    )
    dp_mesh = mesh["dp"]
    for block in model.layers.values():
        fully_shard(block, mesh=dp_mesh, mp_policy=policy, reshard_after_forward=True)
    if model.embedding is not None:
        fully_shard(model.embedding, mesh=dp_mesh, mp_policy=policy, reshard_after_forward=True)
    if model.norm is not None and model.head is not None:
        fully_shard([model.norm, model.head], mesh=dp_mesh, mp_policy=policy, reshard_after_forward=True)
    fully_shard(model, mesh=dp_mesh, mp_policy=policy, reshard_after_forward=True)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss is divided by the tokens of the global batch, so gradients are added, not averaged. Gloo knows no
            # pre-multiplied sum.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


class FullyShardedGroup:
    """The parameters of one block under `fully_shard`, seen as the optimizer wants them: the counterpart of a bucket."""

    def __init__(self, weights: Sequence[OwnedWeight]) -> None:
        self.weights = list(weights)

    def gradients(self) -> list[Tensor]:
        """The reduced gradient of every owned chunk, in the order of `weights`."""
        found = [weight.param.grad for weight in self.weights]
        missing = [w.name for w, grad in zip(self.weights, found, strict=True) if grad is None]
        if missing:
            raise RuntimeError(f"no gradient for {', '.join(missing)}: run a backward pass first")
        return [local_tensor(grad) for grad in found if grad is not None]

    def zero_gradients(self) -> None:
        """Forget the gradients."""
        for weight in self.weights:
            weight.param.grad = None

    def start_gather(self) -> None:
        """Nothing to send: the next forward pass gathers."""

    def finish_gather(self) -> None:
        """Nothing to wait for."""

    def gradient_bytes(self) -> int:
        """Bytes of gradient this rank holds now."""
        grads = [w.param.grad for w in self.weights if w.param.grad is not None]
        return sum(g.numel() * g.element_size() for g in map(local_tensor, grads))
