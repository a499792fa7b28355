"""Jobs that count: bytes held after the backward pass, collectives per step, the order of backward passes and reductions."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import jobs
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from tokpipe.trainer.mesh import ParallelConfig
from tokpipe.trainer.parallel_model import StateBytes

COLLECTIVES = ("allreduce", "all_reduce", "allgather", "all_gather", "reduce_scatter", "send", "recv")


class CollectiveCounter(TorchDispatchMode):
    """Counts the collectives that are dispatched, by kind. (`CommDebugMode` stumbles over pipelines.)"""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = str(func).partition(".")
        if namespace in ("c10d", "_c10d_functional"):
            kind = next((k for k in COLLECTIVES if k in name), "")
            if kind:
                self.counts[kind.replace("allreduce", "all_reduce").replace("allgather", "all_gather")] += 1
        return func(*args, **(kwargs or {}))


class ReductionLog(TorchDispatchMode):
    """Writes `reduce` into a list when a reduction of more than one number is issued."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).startswith(("c10d.allreduce", "c10d._reduce_scatter")):
            tensors = [t for arg in args for t in (arg if isinstance(arg, list) else [arg]) if isinstance(t, torch.Tensor)]
            if max(t.numel() for t in tensors) > 1:
                self.events.append("reduce")
        return func(*args, **(kwargs or {}))


def held_after_backward(config: ParallelConfig) -> tuple[StateBytes, int]:
    """Bytes of model state after the backward pass of the second step, and parameters of this rank's stage."""
    model = jobs.build(config)
    model.train_step(jobs.local_batch(jobs.global_batch(0), config))
    model.forward_backward(jobs.local_batch(jobs.global_batch(1), config))
    return model.state_bytes(), sum(w.param.numel() for o in model.optimizers for g in o.groups for w in g.weights)


def live_after_backward(config: ParallelConfig) -> tuple[StateBytes, int]:
    """Bytes of model state by the model's own account, and of every tensor that came to life meanwhile: slow, so on rank 0."""
    batch = jobs.local_batch(jobs.global_batch(0), config)
    before = _live_bytes()
    model = jobs.build(config)
    model.forward_backward(batch)
    return model.state_bytes(), _live_bytes() - before


def _live_bytes() -> int:
    """Bytes of every distinct storage that a live tensor points to; 0 on other ranks than the first."""
    if dist.get_rank():
        return 0
    gc.collect()
    storages = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(thing, torch.distributed.tensor.DTensor) and thing.device.type == "cpu":
            storage = thing._local_tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def collectives_per_step(config: ParallelConfig) -> dict[str, int]:
    """Collectives of the second step: forward, backward and update, without the four scalars of loss, tokens and norm."""
    model = jobs.build(config)
    model.train_step(jobs.local_batch(jobs.global_batch(0), config))
    batch = jobs.local_batch(jobs.global_batch(1), config)
    with CollectiveCounter() as counter:
        model.train_step(batch)
    return dict(counter.counts)


def backward_order(config: ParallelConfig) -> list[str]:
    """Backward passes of blocks and reductions of gradients, in the order they are issued."""
    model = jobs.build(config)
    events: list[str] = []
    for name, block in model.parts[0].layers.items():
        block.register_full_backward_pre_hook(lambda *_, name=name: events.append(f"backward {name}"))
    with ReductionLog(events):
        model.train_step(jobs.local_batch(jobs.global_batch(0), config))
    return events


def most_gradient_bytes(config: ParallelConfig) -> tuple[int, int]:
    """The most bytes of gradient held when a block's backward pass starts, and the stage's parameters on this rank."""
    model = jobs.build(config)
    held = [0]
    for part in model.parts:
        for block in part.layers.values():
            block.register_full_backward_pre_hook(lambda *_: held.append(model.state_bytes().gradients))
    model.forward_backward(jobs.local_batch(jobs.global_batch(0), config))
    return max(held), sum(w.param.numel() for o in model.optimizers for g in o.groups for w in g.weights)
