"""ZeRO stages 0, 1 and 2: who keeps which gradients, and when they travel.

Parameters are whole on every data-parallel rank. As soon as the backward pass has a parameter's gradient, it is moved into the
buffer of its block (a *bucket*), laid out as one row per rank: row r holds the chunks that rank r owns. When a bucket is full
its reduction starts, while the backward pass goes on with the block below:

    stage 0   all-reduce the bucket                      2 bytes gradient per parameter stay
    stage 1   reduce-scatter into this rank's own row    2 bytes stay, of which only the own row is used
    stage 2   reduce-scatter, then free the bucket       2/N bytes stay

After the update (optimizer.py) stages 1 and 2 all-gather the new parameters, bucket by bucket. So 0, 1 and 2 all move about 2Ψ
elements per rank and step. Stage 3 (fully_sharded.py) moves 3Ψ.

Source: Rajbhandari et al., "ZeRO", arXiv:1910.02054, sections 5 and 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tokpipe.trainer.mesh import ParallelConfig
from tokpipe.trainer.weights import OwnedWeight, local_gradient, local_tensor

# Renamed in PyTorch 2.13, where the old names warn at every call.
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)


class GradientBucket:
    """The gradients of one block, reduced together."""

    def __init__(
        self,
        weights: Sequence[OwnedWeight],
        config: ParallelConfig,
        group: dist.ProcessGroup | None,
        in_flight: list[GradientBucket],
    ) -> None:
        """Take over the gradients of `weights`; `in_flight` is shared by the buckets of a model and holds the one under way."""
        self.weights = list(weights)
        self._in_flight = in_flight
        self.stage = config.zero_stage
        self.dtype = config.grad_torch_dtype
        self.group = group
        self.num_rows = self.weights[0].num_chunks
        self.row = self.weights[0].chunk
        sizes = [w.chunk_shape.numel() for w in self.weights]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._width = sum(sizes)
        self._rows: Tensor | None = None
        self._reduced: Tensor | None = None
        self._incoming: Tensor | None = None
        self._work: dist.Work | None = None
        self._gathered: Tensor | None = None
        self._filled: set[int] = set()
        self._arrivals = 0
        self._expected = 0
        for index, weight in enumerate(self.weights):
            # mypy: untyped in PyTorch.
            weight.param.register_post_accumulate_grad_hook(partial(self._take_gradient, index))  # type: ignore[no-untyped-call]

    def expect(self, num_passes: int) -> None:
        """Start the next reduction after each parameter's gradient has arrived `num_passes` times."""
        self._expected = num_passes * len(self.weights)
        self._arrivals = 0

    def _take_gradient(self, index: int, param: Tensor) -> None:
        parameter = cast(nn.Parameter, param)
        gradient = local_gradient(parameter)
        parameter.grad = None
        if self._rows is None:
            # Padding has to be zero; everything else is written by the first arrival.
            self._rows = torch.zeros(self.num_rows, self._width, dtype=self.dtype, device=gradient.device)
        slot = self._slot(self._rows, index)
        chunks = self.weights[index].split(gradient)
        if index in self._filled:
            slot.add_(chunks)
        else:
            slot.copy_(chunks)
            self._filled.add(index)
        self._arrivals += 1
        if self._arrivals == self._expected:
            self._start_reduction()

    def _slot(self, rows: Tensor, index: int) -> Tensor:
        shape = self.weights[index].chunk_shape
        start = self._starts[index]
        return rows[:, start : start + shape.numel()].view(-1, *shape)

    def _start_reduction(self) -> None:
        self._arrivals = 0
        rows = self._rows
        if self.group is None or rows is None:
            return
        # One reduction overlaps with the backward pass at a time: by now the one before has had a whole block to finish.
        while self._in_flight:
            self._in_flight.pop().finish_reduction()
        self._in_flight.append(self)
        if self.stage == 0:
            self._work = dist.all_reduce(rows, group=self.group, async_op=True)
            return
        self._incoming = rows.new_empty(self._width)
        self._work = _reduce_scatter(self._incoming, rows.view(-1), group=self.group, async_op=True)

    def finish_reduction(self) -> None:
        """Wait for the reduction that is under way, if any, and keep what the stage keeps."""
        if self._work is None:
            return
        self._work.wait()
        self._work = None
        if self._incoming is None or self._rows is None:
            return
        if self.stage == 1:
            self._rows[self.row].copy_(self._incoming)
        else:
            self._reduced = self._incoming if self._reduced is None else self._reduced.add_(self._incoming)
            self._rows = None
            self._filled.clear()
        self._incoming = None

    def gradients(self) -> list[Tensor]:
        """Views of the reduced gradient of every owned chunk, in the order of `weights`."""
        row = self._reduced if self.stage == 2 else None if self._rows is None else self._rows[self.row]
        if row is None:
            raise RuntimeError(f"no gradient for {self.weights[0].name} and its block: run a backward pass first")
        slots = (self._slot(row[None], index)[0] for index in range(len(self.weights)))
        return [weight.without_padding(slot) for weight, slot in zip(self.weights, slots, strict=True)]

    def zero_gradients(self) -> None:
        """Forget the gradients. Stages 0 and 1 keep the buffer, they will need it at once."""
        self._filled.clear()
        self._reduced = None

    def start_gather(self) -> None:
        """Send the updated chunk of every parameter to all ranks."""
        if self.num_rows == 1:
            return
        dtype = self.weights[0].param.dtype
        device = local_tensor(self.weights[0].param).device
        self._gathered = torch.zeros(self.num_rows, self._width, dtype=dtype, device=device)
        mine = self._gathered.new_zeros(self._width)
        for index, weight in enumerate(self.weights):
            weight.without_padding(self._slot(mine[None], index)[0]).copy_(weight.owned(local_tensor(weight.param)))
        self._work = _all_gather(self._gathered.view(-1), mine, group=self.group, async_op=True)

    def finish_gather(self) -> None:
        """Wait for the other ranks' chunks and put them in place."""
        if self._work is None or self._gathered is None:
            return
        self._work.wait()
        for index, weight in enumerate(self.weights):
            local_tensor(weight.param).copy_(weight.join(self._slot(self._gathered, index)))
        self._work = None
        self._gathered = None

    def gradient_bytes(self) -> int:
        """Bytes of gradient this rank holds now."""
        held = [t for t in (self._rows, self._incoming, self._reduced) if t is not None]
        return sum(t.numel() * t.element_size() for t in held)


class GradientReducer:
    """All buckets of a model part, and the rule when they are reduced."""

    def __init__(self, buckets: Sequence[GradientBucket], config: ParallelConfig) -> None:
        self.buckets = list(buckets)
        self._num_micro_batches = config.num_micro_batches
        # Literal ZeRO-2: no micro-batch leaves whole gradients behind. Under a pipeline that would be a reduce-scatter per
        # micro-batch and stage, so there gradients stay whole until the last one.
        self._each_micro_batch = config.zero_stage == 2 and config.pp == 1

    def start_step(self) -> None:
        """Before the first backward pass of a step."""
        for bucket in self.buckets:
            bucket.expect(1 if self._each_micro_batch else self._num_micro_batches)

    def finish_micro_batch(self) -> None:
        """After each backward pass, where nothing else follows: frees what stage 2 does not keep."""
        if self._each_micro_batch:
            self.finish_step()

    def finish_step(self) -> None:
        """After the last backward pass: every reduction has arrived."""
        for bucket in self.buckets:
            bucket.finish_reduction()
