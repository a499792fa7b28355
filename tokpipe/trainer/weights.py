"""The part of a parameter that one rank updates.

Tensor parallel cuts a parameter first; what is left on a rank is its *local* tensor. ZeRO then gives each data-parallel rank one
*chunk* of that local tensor to own: it keeps the fp32 master, momentum and variance of the chunk, and updates it. ZeRO 1 and 2
cut along a dim that tensor parallel left whole, so that a chunk is a plain slice of the full parameter, which is what a
checkpoint stores. Under ZeRO 3 `fully_shard` has cut already: the local tensor is the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard

from tokpipe.trainer.mesh import ParallelConfig, axis_rank


def local_tensor(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: the local part of a DTensor, or the tensor."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_gradient(param: nn.Parameter) -> Tensor:
    """This rank's gradient, laid out as the parameter.

    Under sequence parallel a norm sees a part of the sequence, so its gradient is a partial sum: it is added up over tp here.
    """
    grad = param.grad
    if isinstance(param, DTensor) and isinstance(grad, DTensor):
        return grad.redistribute(placements=param.placements).to_local()
    if grad is None:
        raise ValueError("parameter has no gradient")
    return grad


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedWeight:
    """One parameter and the chunk of it that this rank updates."""

    name: str
    """Name in the plain model, whatever wraps it."""
    param: nn.Parameter
    """Plain, or a DTensor if tensor parallel or `fully_shard` cut it."""
    dim: int
    """Dim of the local tensor that is cut into chunks."""
    num_chunks: int
    """Data-parallel ranks that share it; 1 if this rank updates its whole local tensor."""
    chunk: int
    """Which of them is this rank's."""
    mesh: DeviceMesh | None
    """The grid, to describe the chunk's place to a checkpoint."""
    num_holders: int
    """Ranks whose owned part holds the same elements; a norm over all ranks counts each element once."""

    @property
    def chunk_size(self) -> int:
        """Rows of a chunk along `dim`, as `torch.chunk` cuts: the last chunks may hold fewer, or none."""
        return -(-local_tensor(self.param).shape[self.dim] // self.num_chunks)

    @property
    def chunk_shape(self) -> torch.Size:
        """Shape of a full chunk, padding included."""
        shape = list(local_tensor(self.param).shape)
        shape[self.dim] = self.chunk_size
        return torch.Size(shape)

    def split(self, local: Tensor) -> Tensor:
        """View (or, where padding or a dim other than 0 asks for it, copy) a local tensor as (num_chunks, *chunk_shape)."""
        if self.num_chunks == 1:
            return local[None]
        missing = self.chunk_size * self.num_chunks - local.shape[self.dim]
        if missing:
            local = F.pad(local, [0, 0] * (local.dim() - 1 - self.dim) + [0, missing])
        shape = (*local.shape[: self.dim], self.num_chunks, self.chunk_size, *local.shape[self.dim + 1 :])
        return local.reshape(shape).movedim(self.dim, 0)

    def join(self, chunks: Tensor) -> Tensor:
        """The inverse of `split`: (num_chunks, *chunk_shape) to the local tensor's shape."""
        size = local_tensor(self.param).shape[self.dim]
        return chunks.movedim(0, self.dim).flatten(self.dim, self.dim + 1).narrow(self.dim, 0, size)

    def owned(self, local: Tensor) -> Tensor:
        """View of this rank's chunk of a local tensor, without padding; may be empty."""
        size = local.shape[self.dim]
        start = min(self.chunk * self.chunk_size, size)
        return local.narrow(self.dim, start, min(self.chunk_size, size - start))

    def without_padding(self, chunk: Tensor) -> Tensor:
        """View of what a padded chunk of `chunk_shape` holds of the parameter."""
        return chunk.narrow(self.dim, 0, self.owned(local_tensor(self.param)).shape[self.dim])

    def describe(self, owned: Tensor) -> Tensor:
        """Wrap an owned chunk as a DTensor of the whole parameter, sharing its memory, so that a checkpoint knows its place."""
        placements: tuple[Placement, ...] = tuple(self.param.placements) if isinstance(self.param, DTensor) else ()
        mesh = self.param.device_mesh if isinstance(self.param, DTensor) else None
        if self.num_chunks > 1 and self.mesh is not None:
            mesh = self.mesh["dp", "tp"] if placements else self.mesh["dp"]
            placements = (Shard(self.dim), *placements)
        if mesh is None:
            return owned
        return DTensor.from_local(
            owned,
            mesh,
            placements,
            run_check=False,
            shape=self.param.shape,
            stride=torch.empty(self.param.shape, device="meta").stride(),
        )


def owned_weight(name: str, param: nn.Parameter, config: ParallelConfig, mesh: DeviceMesh | None) -> OwnedWeight:
    """Decide what this rank updates of a parameter."""
    tp_placement = _tp_placement(param)
    cut_by_tp = tp_placement is not None and tp_placement.is_shard()
    dim = 1 if isinstance(tp_placement, Shard) and tp_placement.dim == 0 and param.dim() > 1 else 0
    sharded = config.zero_stage in (1, 2)
    return OwnedWeight(
        name=name,
        param=param,
        dim=dim,
        num_chunks=config.dp if sharded else 1,
        chunk=axis_rank(mesh, "dp") if sharded else 0,
        mesh=mesh,
        num_holders=(1 if config.zero_stage else config.dp) * (1 if cut_by_tp else config.tp),
    )


def _tp_placement(param: nn.Parameter) -> Placement | None:
    """How tensor parallel cut a parameter, or `None` if it is not on the tp axis."""
    if not isinstance(param, DTensor):
        return None
    axes = param.device_mesh.mesh_dim_names or ()
    return param.placements[axes.index("tp")] if "tp" in axes else None
