"""Phases: what happens to the lanes when the batch size, the weights or the sequence length change in the middle of training.

A source is read as a chain of divisions. A `Division` cuts a pool of samples into equal lanes; its pool is the whole source, or
what an earlier division had not read of its epoch when the number of lanes changed. A pool index becomes a sample by walking up
that chain, for a thousand samples at a time. A `Timeline` says which division a source is in at every step, and what each epoch
that a change cut short left out. No clock, no files, no randomness: only numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from tokpipe.errors import PartitionError
from tokpipe.partition.lanes import num_samples
from tokpipe.partition.order import Order, block_samples, lane_key, lane_order

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """From one step on: how many samples a step takes, of what length, from which sources in which proportion."""

    start: int = 0
    """First global step of the phase."""
    global_batch_size: int
    """Samples per step, over all data-parallel ranks."""
    seq_len: int
    """Tokens per sample, without the one more that the last label takes."""
    weights: tuple[tuple[str, float], ...] | None = None
    """(source, weight) pairs, sorted by name; None reads the concatenation of all sources, every sample once per epoch."""

    def __post_init__(self) -> None:
        for name in ("start", "global_batch_size", "seq_len"):
            value, least = getattr(self, name), int(name != "start")
            if isinstance(value, bool) or not isinstance(value, SupportsIndex) or value.__index__() < least:
                raise PartitionError(f"{name} of a phase must be an integer of at least {least}, got {value!r}")
            object.__setattr__(self, name, value.__index__())
        if self.weights is not None:
            pairs = dict(self.weights).items()
            object.__setattr__(self, "weights", tuple(sorted((str(name), float(weight)) for name, weight in pairs)))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {
            "start": self.start,
            "global_batch_size": self.global_batch_size,
            "seq_len": self.seq_len,
            "weights": None if self.weights is None else dict(self.weights),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Phase:
        """The inverse of `as_dict`."""
        weights = value.get("weights")
        return cls(
            start=value.get("start", 0),
            global_batch_size=value["global_batch_size"],
            seq_len=value["seq_len"],
            weights=None if weights is None else tuple(weights.items()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """One way of cutting a pool of one source's samples into lanes.

    Lane i of n holds pool indices [i K, (i + 1) K) with K = pool // n; up to n - 1 indices at the end of the pool are in no lane.
    """

    num_lanes: int
    pool: int
    """Samples in the pool."""
    seq_len: int
    epoch: int
    """Epoch of the source in which the division begins."""
    parent: Division | None = None
    """None: the pool is the whole source. Else it is what `parent` had not read, and lasts for the rest of that epoch."""
    parent_read: int = 0
    """Samples that had been read from each lane of `parent`."""

    @property
    def lane_length(self) -> int:
        """Samples per lane, which is steps per pass."""
        return self.pool // self.num_lanes

    @property
    def block(self) -> int:
        """Samples per block of the default order."""
        return block_samples(self.lane_length, self.seq_len)

    def unread(self, read: int) -> int:
        """Samples of the pool that are left when each lane has read `read`, those in no lane included."""
        return self.pool - self.num_lanes * read

    def pool_index(self, lane: Ints, position: Ints, epoch: Ints, *, seed: int, source: int, order: Order) -> Ints:
        """What each `lane` reads at `position` of `epoch`; all (n,) int64."""
        length = np.full(lane.shape, self.lane_length, dtype=np.int64)
        key = lane_key(seed, np.full(lane.shape, source, dtype=np.int64), epoch, lane)
        block = np.full(lane.shape, self.block, dtype=np.int64)
        return lane * self.lane_length + lane_order(order, position, length, block, key)

    def resolve(self, pool_index: Ints, epoch: Ints, *, seed: int, source: int, order: Order) -> Ints:
        """Pool indices to samples of the source: through the unread positions of every earlier division of the epoch.

        A pool holds the unread positions of its parent's lanes, lane by lane, and then what was in no lane.
        """
        division = self
        while (parent := division.parent) is not None:
            left = parent.lane_length - division.parent_read
            in_lanes = pool_index < parent.num_lanes * left
            lane, beyond = np.divmod(pool_index[in_lanes], left)
            position = division.parent_read + beyond
            resolved = pool_index + parent.num_lanes * division.parent_read
            resolved[in_lanes] = parent.pool_index(lane, position, epoch[in_lanes], seed=seed, source=source, order=order)
            division, pool_index = parent, resolved
        return pool_index


@dataclass(frozen=True, slots=True)
class Span:
    """From step `start` on a source is in `division`, `offset` steps into it; until the next span, or for ever."""

    start: int
    division: Division | None
    """None: no lane of this source."""
    offset: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An epoch that a change ended or cut anew: how many of its samples nobody reads."""

    step: int
    epoch: int
    num_samples: int


@dataclass(slots=True)
class Timeline:
    """One source's spans, phase by phase."""

    num_tokens: int
    spans: list[Span] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    next_epoch: int = 0
    """The epoch that begins when no division is under way."""
    _division: Division | None = None
    _read: int = 0

    def add_phase(self, start: int, stop: int | None, *, num_lanes: int, seq_len: int) -> None:
        """Lay out steps [start, stop), the last phase without a stop; phases come in order, with no more lanes than samples."""
        if not num_lanes:
            self.spans.append(Span(start, None, 0))
            return
        division, read = self._enter(start, num_lanes, seq_len)
        self.spans.append(Span(start, division, read))
        if division.parent is not None:
            ends = start + division.lane_length - read
            if stop is None or ends <= stop:
                self._leave_out(ends, division, division.lane_length)
                division, start, read = self._whole(num_lanes, seq_len), ends, 0
                self.spans.append(Span(start, division, 0))
        if stop is not None:
            self._stop_at(division, read + stop - start)

    def begin_afresh(self, step: int, *, at_least: int) -> None:
        """End the epoch under way, if any; the next one has number `at_least` or more."""
        if self._division is not None:
            self._leave_out(step, self._division, self._read)
        self.next_epoch = max(self.next_epoch, at_least)

    def _enter(self, step: int, num_lanes: int, seq_len: int) -> tuple[Division, int]:
        """The division that a phase begins in, and how far into it."""
        old = self._division
        if old is not None and old.seq_len != seq_len:
            self.begin_afresh(step, at_least=0)
        elif old is not None and old.num_lanes == num_lanes:
            return old, self._read
        elif old is not None:
            pool = old.unread(self._read)
            if pool >= num_lanes:
                child = Division(
                    num_lanes=num_lanes, pool=pool, seq_len=seq_len, epoch=old.epoch, parent=old, parent_read=self._read
                )
                return child, 0
            self.begin_afresh(step, at_least=0)
        return self._whole(num_lanes, seq_len), 0

    def _whole(self, num_lanes: int, seq_len: int) -> Division:
        pool = num_samples(self.num_tokens, seq_len)
        assert pool >= num_lanes, "lane_counts refuses a phase with more lanes than samples"
        return Division(num_lanes=num_lanes, pool=pool, seq_len=seq_len, epoch=self.next_epoch)

    def _stop_at(self, division: Division, time: int) -> None:
        """Note where a phase leaves the source: between two epochs, or so far into one."""
        passes, read = divmod(time, division.lane_length)
        if division.parent is None and passes:
            division = Division(
                num_lanes=division.num_lanes, pool=division.pool, seq_len=division.seq_len, epoch=division.epoch + passes
            )
        self._division, self._read, self.next_epoch = division, read, division.epoch
        if not read:
            self._division = None

    def _leave_out(self, step: int, division: Division, read: int) -> None:
        """The division's epoch ends here, with whatever is unread."""
        self.left_out.append(LeftOut(step, division.epoch, division.unread(read)))
        self.next_epoch, self._division, self._read = division.epoch + 1, None, 0


def mode_changed(before: Phase, after: Phase) -> bool:
    """Whether sources are joined into one, or taken apart again: samples are cut differently, so epochs begin afresh."""
    return (before.weights is None) != (after.weights is None)


def check_starts(phases: Sequence[Phase]) -> None:
    """Phases begin at step 0 and come in order.

    Raises:
        PartitionError: if they do not.
    """
    starts = [phase.start for phase in phases]
    if not starts or starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
        raise PartitionError(f"phases must start at step 0 and then at later and later steps, got starts {starts}")


def make_phases(
    *,
    seq_len: int | None,
    global_batch_size: int | None,
    weights: Mapping[str, float] | None,
    phases: Sequence[Phase | Mapping[str, Any]] | None,
) -> tuple[Phase, ...]:
    """Phases from either a schedule or the settings of a single one.

    Raises:
        PartitionError: if both or neither are given, or the schedule is out of order.
    """
    single = {"seq_len": seq_len, "global_batch_size": global_batch_size, "weights": weights}
    if phases is not None:
        given = [name for name, value in single.items() if value is not None]
        if given:
            raise PartitionError(f"phases say {', '.join(given)} already; give one or the other")
        made = tuple(phase if isinstance(phase, Phase) else Phase.from_dict(phase) for phase in phases)
        check_starts(made)
        return made
    if seq_len is None or global_batch_size is None:
        raise PartitionError("give seq_len and global_batch_size, or phases")
    pairs = None if weights is None else tuple(weights.items())
    return (Phase(global_batch_size=global_batch_size, seq_len=seq_len, weights=pairs),)
