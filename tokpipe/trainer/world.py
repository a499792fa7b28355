"""One process among many: its rank, its device, and the process group, opened and closed in one place."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from tokpipe.errors import TrainerError
from tokpipe.trainer.monitor import KeyValueStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How this process was started; `torchrun` says it in the environment, the command line reads it there."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    distributed: bool = False
    """Join a process group at `MASTER_ADDR:MASTER_PORT`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the run needs to know about the other processes."""

    rank: int
    world_size: int
    device: torch.device
    store: KeyValueStore | None
    """Key-value store of the job, for the monitor; None for one process."""
    control_group: dist.ProcessGroup | None
    """A gloo group of all ranks for small host-side messages, apart from the training collectives."""
    checkpoint_group: dist.ProcessGroup | None
    """Another one for checkpoints: their thread talks while the main thread does, and messages of one group must not mix."""

    @property
    def distributed(self) -> bool:
        """Whether there is a process group."""
        return self.control_group is not None


def choose_device(wanted: str, local_rank: int) -> torch.device:
    """`auto` is CUDA where there is one.

    Raises:
        TrainerError: if CUDA is asked for and absent.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise TrainerError('run.device is "cuda", but PyTorch sees no CUDA GPU here; use "cpu" or "auto", or check the driver')
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank)


@contextlib.contextmanager
def join_world(launch: Launch, *, device: str, timeout_seconds: float) -> Iterator[World]:
    """Join the job, and leave it at the end. A process group that exists already is used and left as it is.

    After an error the group is not torn down: that may wait for a rank that is gone. The process ends instead.
    """
    chosen = choose_device(device, launch.local_rank)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    timeout = timedelta(seconds=timeout_seconds)
    if not launch.distributed and not dist.is_initialized():
        yield World(rank=0, world_size=1, device=chosen, store=None, control_group=None, checkpoint_group=None)
        return
    opened = not dist.is_initialized()
    store: KeyValueStore | None = None
    if opened:
        tcp_store, rank, world_size = next(rendezvous("env://", launch.rank, launch.world_size, timeout=timeout))
        attempt = agree_on_attempt(tcp_store, rank=rank, world_size=world_size, timeout_seconds=timeout_seconds)
        backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=PrefixStore(attempt, tcp_store), rank=rank, world_size=world_size, timeout=timeout)
        # A connection of its own: the monitor must not wait behind a blocking call of the group.
        store = cast(KeyValueStore, PrefixStore(attempt, tcp_store.clone()))
    control, checkpoint = (dist.new_group(backend="gloo", timeout=timeout) for _ in range(2))
    yield World(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        device=chosen,
        store=store,
        control_group=control,
        checkpoint_group=checkpoint,
    )
    dist.barrier(group=control)
    if opened:
        dist.destroy_process_group()


def agree_on_attempt(store: KeyValueStore, *, rank: int, world_size: int, timeout_seconds: float) -> str:
    """A name for this attempt that all its ranks share and no earlier one had.

    torchrun keeps one store over all restarts, with the addresses of processes that have died; ranks that read those fail or wait
    in vain. Restart counts do not tell attempts apart either: every node counts its own. So each rank says a fresh word, rank 0
    repeats the words it has heard, and who hears its own word in it knows that this rank 0 is alive now.

    Raises:
        TrainerError: if the ranks do not all arrive in time.
    """
    word = uuid.uuid4().hex
    store.set(f"hello/{rank}", word)
    deadline = time.monotonic() + timeout_seconds
    attempt, said = (word, "") if rank == 0 else ("", "")
    while time.monotonic() < deadline:
        if rank == 0:
            missing = [r for r in range(world_size) if not store.check([f"hello/{r}"])]
            heard = "" if missing else ",".join(store.get(f"hello/{r}").decode() for r in range(world_size))
            if heard != said:
                store.set("welcome", f"{attempt}:{heard}")
                said = heard
            if not missing and all(_says(store, f"ready/{r}", attempt) for r in range(1, world_size)):
                store.set("go", attempt)
                return attempt
        elif store.check(["welcome"]):
            name, _, words = store.get("welcome").decode().partition(":")
            if word in words.split(",") and name != attempt:
                attempt = name
                store.set(f"ready/{rank}", attempt)
            if attempt and _says(store, "go", attempt):
                return attempt
        time.sleep(0.02)
    raise TrainerError(
        f"rank {rank}: not all of {world_size} ranks arrived within {timeout_seconds:.0f} s; look at what the late ones say"
    )


def _says(store: KeyValueStore, key: str, value: str) -> bool:
    return store.check([key]) and store.get(key).decode() == value


def any_rank(world: World, flag: bool) -> bool:
    """Whether the flag is set on any rank; a collective, so every rank must ask at the same place."""
    if world.control_group is None:
        return flag
    value = torch.tensor([int(flag)])
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=world.control_group)
    return bool(value.item())


def from_rank_zero(world: World, value: str) -> str:
    """Rank 0's string on every rank."""
    if world.control_group is None:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=world.control_group)
    return box[0]
