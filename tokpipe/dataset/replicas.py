"""The data axis of a device mesh, and the proof that all ranks of a replica hold the same batch."""

from __future__ import annotations

import hashlib

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from tokpipe.dataset.batch import Batch
from tokpipe.errors import PartitionError

DATA_AXIS = "dp"
"""The one axis of the mesh that partitions data. Ranks along the others read the same batch."""


def data_rank(dp_rank: int | None, dp_world_size: int | None, mesh: DeviceMesh | None) -> tuple[int, int]:
    """(dp_rank, dp_world_size), from numbers or from a mesh.

    Raises:
        PartitionError: if both or half of them are given, the mesh has no axis "dp", or several processes run and none is told
            which part is its own.
    """
    if mesh is not None:
        if dp_rank is not None or dp_world_size is not None:
            raise PartitionError("give either mesh or dp_rank and dp_world_size, not both")
        size = _data_axis(mesh)
        return mesh.get_local_rank(DATA_AXIS), size
    if dp_rank is None and dp_world_size is None:
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise PartitionError(
                f"{dist.get_world_size()} processes run and all would read the same: give mesh, or dp_rank and dp_world_size"
            )
        return 0, 1
    if dp_rank is None or dp_world_size is None:
        raise PartitionError(f"dp_rank and dp_world_size go together, got {dp_rank} and {dp_world_size}")
    return dp_rank, dp_world_size


def check_replicas(batch: Batch, mesh: DeviceMesh) -> None:
    """Prove that every rank of this replica holds the same batch. Collective: all ranks of the mesh call it.

    Hashes are gathered along every axis but the data axis, 16 bytes a rank.

    Raises:
        PartitionError: on every rank of a replica in which batches differ; names the global ranks that differ from most.
    """
    _data_axis(mesh)
    names = mesh.mesh_dim_names or ()
    hashes = torch.frombuffer(bytearray(_digest(batch)), dtype=torch.int64).to(mesh.device_type).reshape(1, 2)
    ranks = torch.tensor([[dist.get_rank()]], dtype=torch.int64, device=mesh.device_type)
    rows = torch.cat([ranks, hashes], dim=1)
    for name in names:
        if name != DATA_AXIS:
            rows = _gather(rows, mesh, name)
    replica = {int(rank): (int(high), int(low)) for rank, high, low in rows.tolist()}
    values = sorted(replica.values())
    usual = max(values, key=lambda value: (values.count(value), value == replica[min(replica)]))
    odd = sorted(rank for rank, value in replica.items() if value != usual)
    if odd:
        held = f"rank {odd[0]} holds" if len(odd) == 1 else f"ranks {', '.join(map(str, odd))} hold"
        raise PartitionError(
            f"step {batch.step}: the ranks {sorted(replica)} form data-parallel replica {mesh.get_local_rank(DATA_AXIS)} and "
            f"must hold one batch, but {held} another. Check that all were given the same dataset, arguments and state."
        )


def _data_axis(mesh: DeviceMesh) -> int:
    """Size of the data axis."""
    names = mesh.mesh_dim_names or ()
    if DATA_AXIS not in names:
        raise PartitionError(f'the mesh has no axis "{DATA_AXIS}", only {", ".join(names) or "axes without names"}')
    return int(mesh.size(names.index(DATA_AXIS)))


def _gather(rows: Tensor, mesh: DeviceMesh, name: str) -> Tensor:
    group = mesh.get_group(name)
    gathered = [torch.empty_like(rows) for _ in range(group.size())]
    dist.all_gather(gathered, rows.contiguous(), group=group)
    return torch.cat(gathered)


def _digest(batch: Batch) -> bytes:
    """16 bytes over everything that the model sees of a batch."""
    digest = hashlib.blake2b(f"{batch.step} {batch.first} {batch.max_seqlen}".encode(), digest_size=16)
    for tensor in (batch.input_ids, batch.labels, batch.position_ids, batch.document_ids, batch.cu_seqlens):
        digest.update(b"-" if tensor is None else tensor.cpu().contiguous().numpy().tobytes())
    return digest.digest()
