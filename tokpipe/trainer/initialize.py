"""Fill a model that was laid out without memory: every rank draws only its own weights' tensors, and keeps its part of them.

A parameter's values follow from the seed and its name (model.py), so any layout starts from the same weights, and no rank ever
holds more than one whole parameter.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from tokpipe.trainer.model import Transformer, initial_weight
from tokpipe.trainer.recompute import plain_name
from tokpipe.trainer.weights import local_tensor


@torch.no_grad()
def materialize(model: Transformer, *, device: torch.device, seed: int, rounded_to: torch.dtype) -> None:
    """Give a model on the meta device its memory and its initial weights.

    Args:
        model: Plain, cut by tensor parallel, sharded, or all of it.
        device: Where it is to live.
        seed: Of the initial weights.
        rounded_to: Round values to this dtype, whatever they are stored in: fp32 shards then start equal to bf16 ones.
    """
    model.to_empty(device=device)
    for name, param in model.named_parameters():
        whole = initial_weight(model.config, plain_name(name), param.shape, seed=seed, device=device).to(rounded_to)
        local_tensor(param).copy_(_local_part(whole, param))


def _local_part(whole: Tensor, param: Tensor) -> Tensor:
    if not isinstance(param, DTensor):
        return whole
    shape, offset = compute_local_shape_and_global_offset(param.shape, param.device_mesh, param.placements)
    for dim, (start, size) in enumerate(zip(offset, shape, strict=True)):
        # An empty part may be given an offset past the end.
        whole = whole.narrow(dim, min(start, whole.shape[dim] - size), size)
    return whole
