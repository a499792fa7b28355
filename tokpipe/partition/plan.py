"""PartitionPlan: every sample of every step of a training run, as a function.

A plan is made of the sources' token counts, the phases, a seed and an order. It knows nothing of ranks: `locate` answers for any
steps and any positions of the global batch, and a rank asks for its own. Nothing is stored per sample, so making a plan for a
trillion tokens takes as long as for a thousand.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokpipe.errors import PartitionError
from tokpipe.partition.checks import SourceTokens, lane_counts, with_all
from tokpipe.partition.lanes import interleave, num_samples
from tokpipe.partition.order import BLOCK_TOKENS, MIN_BLOCKS_PER_LANE, ORDERS, Order, lane_key, lane_order
from tokpipe.partition.phases import Division, LeftOut, Phase, Span, Timeline, check_starts, mode_changed
from tokpipe.shards import Manifest

Ints = NDArray[np.int64]

ALGORITHM = 1
"""Version of docs/lanes.md; part of the plan hash, so that a state never resumes under other arithmetic."""


@dataclass(frozen=True, slots=True)
class _Era:
    """Steps in which no source changes its division, as arrays over the groups (the sources, and all of them joined)."""

    start: int
    slot_group: Ints
    slot_lane: Ints
    divisions: tuple[Division | None, ...]
    offset: Ints
    lane_length: Ints
    block: Ints
    epoch: Ints


class PartitionPlan:
    """Which sample every position of the global batch reads at every step.

    Groups are numbered: 0 to S - 1 are the sources in the dataset's order, S is all of them joined. Pickles without its caches.
    """

    def __init__(
        self,
        *,
        dataset_id: str,
        sources: Sequence[SourceTokens],
        phases: Sequence[Phase],
        seed: int = 0,
        order: Order = "blocks",
        batch_multiple: int = 1,
    ) -> None:
        """Lay the phases out.

        Args:
            dataset_id: whose plan it is.
            sources: names and tokens, in the dataset's order.
            phases: by ascending `start`, the first at 0.
            seed: any integer; with the epoch and the lane it decides the order.
            order: "blocks", "sequential" or "full".
            batch_multiple: for error messages: suggested batch sizes are multiples of this.

        Raises:
            PartitionError: if a phase cannot be laid out; the message has the numbers and the nearest that can.
        """
        if order not in ORDERS:
            raise PartitionError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        check_starts(phases)
        self.dataset_id = dataset_id
        self.sources = tuple(sources)
        self.phases = tuple(phases)
        self._phase_starts = [phase.start for phase in phases]
        self.seed = seed
        self.order: Order = order
        self.batch_multiple = batch_multiple
        self._counts = [lane_counts(self.sources, phase, batch_multiple=batch_multiple) for phase in self.phases]
        self._timelines = self._lay_out()

    @classmethod
    def of_manifest(
        cls, manifest: Manifest, *, phases: Sequence[Phase], seed: int = 0, order: Order = "blocks", batch_multiple: int = 1
    ) -> PartitionPlan:
        """A plan over a dataset's training shards; the arguments are the constructor's."""
        sources = source_tokens(manifest, held_out=False)
        return cls(
            dataset_id=manifest.dataset_id, sources=sources, phases=phases, seed=seed, order=order, batch_multiple=batch_multiple
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (_open_plan, (self.dataset_id, self.sources, self.phases, self.seed, self.order, self.batch_multiple))

    @property
    def group_names(self) -> list[str]:
        """Name of each group."""
        return [name for name, _ in with_all(self.sources)]

    @property
    def plan_hash(self) -> str:
        """Hash of the arithmetic: its version, seed and order. The phases are compared by themselves, to name what differs."""
        parts = [ALGORITHM, self.seed, self.order, BLOCK_TOKENS, MIN_BLOCKS_PER_LANE]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def with_phase(self, phase: Phase) -> PartitionPlan:
        """This plan up to `phase.start`, and `phase` from there on; phases that were to start later are dropped."""
        kept = [earlier for earlier in self.phases if earlier.start < phase.start]
        return PartitionPlan(
            dataset_id=self.dataset_id,
            sources=self.sources,
            phases=[*kept, phase],
            seed=self.seed,
            order=self.order,
            batch_multiple=self.batch_multiple,
        )

    def phase_index(self, step: int) -> int:
        """Number of the phase that a step lies in."""
        if step < 0:
            raise PartitionError(f"step must not be negative, got {step}")
        return bisect_right(self._phase_starts, step) - 1

    def phase_at(self, step: int) -> Phase:
        """The phase that a step lies in."""
        return self.phases[self.phase_index(step)]

    def lanes_at(self, step: int) -> tuple[Ints, Ints]:
        """(G,) group and (G,) lane of every position of the global batch at a step."""
        return _interleave(tuple(self._counts[self.phase_index(step)]))

    def counts_at(self, step: int) -> dict[str, int]:
        """Samples of each group in every global batch of the phase that a step lies in, groups without any left out."""
        counts = self._counts[self.phase_index(step)]
        return {name: count for name, count in zip(self.group_names, counts, strict=True) if count}

    def division_at(self, group: int, step: int) -> tuple[Division | None, int]:
        """The division that a group is read through at a step, and how many steps into it."""
        span = self._span(group, step)
        return span.division, span.offset + step - span.start

    def locate(self, steps: Ints, positions: Ints) -> tuple[Ints, Ints]:
        """Which samples given positions of given global batches read.

        Args:
            steps: (n,) int64, not negative.
            positions: (n,) int64, each below its step's global batch size.

        Returns:
            (n,) int64 group, (n,) int64 sample of that group.
        """
        starts = self._era_starts
        which = np.searchsorted(starts, steps, side="right") - 1
        first = int(which[0]) if len(which) else 0
        if (which == first).all():
            return self._locate_in_era(self._era(first), steps, positions)
        groups, samples = np.empty_like(steps), np.empty_like(steps)
        for number in np.unique(which).tolist():
            mask = which == number
            groups[mask], samples[mask] = self._locate_in_era(self._era(number), steps[mask], positions[mask])
        return groups, samples

    def steps_per_epoch(self, step: int = 0) -> dict[str, int]:
        """Steps that each group's whole epochs take in the phase of `step`, groups without lanes left out."""
        number = self.phase_index(step)
        return {
            name: num_samples(tokens, self.phases[number].seq_len) // lanes
            for (name, tokens), lanes in zip(with_all(self.sources), self._counts[number], strict=True)
            if lanes
        }

    def tail_per_epoch(self, step: int = 0) -> dict[str, int]:
        """Samples that each group's whole epochs leave out in the phase of `step`."""
        number = self.phase_index(step)
        return {
            name: num_samples(tokens, self.phases[number].seq_len) % lanes
            for (name, tokens), lanes in zip(with_all(self.sources), self._counts[number], strict=True)
            if lanes
        }

    def epochs_at(self, step: int) -> dict[str, float]:
        """Epochs of each group that lie behind at the start of a step: whole ones and the read part of the one under way."""
        found = {}
        for group, (name, num_tokens) in enumerate(with_all(self.sources)):
            division, time = self.division_at(group, step)
            if division is None:
                continue
            passes, read = divmod(time, division.lane_length)
            total = num_samples(num_tokens, division.seq_len)
            found[name] = division.epoch + passes + (total - division.unread(read)) / total
        return found

    def left_out(self) -> dict[str, tuple[LeftOut, ...]]:
        """Epochs that a change of phase cut short or cut anew, with the samples that nobody reads; regular tails apart."""
        pairs = zip(self.group_names, self._timelines, strict=True)
        return {name: tuple(timeline.left_out) for name, timeline in pairs if timeline.left_out}

    def _lay_out(self) -> list[Timeline]:
        timelines = [Timeline(tokens) for _, tokens in with_all(self.sources)]
        for number, phase in enumerate(self.phases):
            stop = self.phases[number + 1].start if number + 1 < len(self.phases) else None
            if number and mode_changed(self.phases[number - 1], phase):
                for timeline in timelines:
                    timeline.begin_afresh(phase.start, at_least=0)
                latest = max(timeline.next_epoch for timeline in timelines)
                for timeline in timelines:
                    timeline.begin_afresh(phase.start, at_least=latest)
            for timeline, lanes in zip(timelines, self._counts[number], strict=True):
                timeline.add_phase(phase.start, stop, num_lanes=lanes, seq_len=phase.seq_len)
        return timelines

    def _span(self, group: int, step: int) -> Span:
        return next(span for span in reversed(self._timelines[group].spans) if span.start <= step)

    @cached_property
    def _era_starts(self) -> Ints:
        return np.array(sorted({span.start for timeline in self._timelines for span in timeline.spans}), dtype=np.int64)

    @cached_property
    def _eras(self) -> dict[int, _Era]:
        return {}

    def _era(self, number: int) -> _Era:
        if number not in self._eras:
            start = int(self._era_starts[number])
            pairs = [self.division_at(group, start) for group in range(len(self.sources) + 1)]
            slot_group, slot_lane = self.lanes_at(start)
            # A group without lanes gets numbers that are never used, but that may stand in a division.
            self._eras[number] = _Era(
                start=start,
                slot_group=slot_group,
                slot_lane=slot_lane,
                divisions=tuple(division for division, _ in pairs),
                offset=np.array([time for _, time in pairs], dtype=np.int64),
                lane_length=np.array([d.lane_length if d else 1 for d, _ in pairs], dtype=np.int64),
                block=np.array([d.block if d else 1 for d, _ in pairs], dtype=np.int64),
                epoch=np.array([d.epoch if d else 0 for d, _ in pairs], dtype=np.int64),
            )
        return self._eras[number]

    def _locate_in_era(self, era: _Era, steps: Ints, positions: Ints) -> tuple[Ints, Ints]:
        group, lane = era.slot_group[positions], era.slot_lane[positions]
        length = era.lane_length[group]
        passes, position = np.divmod(steps - era.start + era.offset[group], length)
        epoch = era.epoch[group] + passes
        key = lane_key(self.seed, group, epoch, lane)
        sample = lane * length + lane_order(self.order, position, length, era.block[group], key)
        for number, division in enumerate(era.divisions):
            if division is not None and division.parent is not None:
                mask = group == number
                sample[mask] = division.resolve(sample[mask], epoch[mask], seed=self.seed, source=number, order=self.order)
        return group, sample


def source_tokens(manifest: Manifest, *, held_out: bool) -> list[SourceTokens]:
    """Tokens of each of a manifest's sources, in its order, over its training or its held-out shards."""
    totals = dict.fromkeys(manifest.sources, 0)
    for shard in manifest.shards:
        if shard.held_out == held_out:
            totals[shard.source] += shard.num_tokens
    return [SourceTokens(name, total) for name, total in totals.items()]


@lru_cache(maxsize=64)
def _interleave(counts: tuple[int, ...]) -> tuple[Ints, Ints]:
    return interleave(counts)


def _open_plan(
    dataset_id: str, sources: tuple[SourceTokens, ...], phases: tuple[Phase, ...], seed: int, order: Order, batch_multiple: int
) -> PartitionPlan:
    return PartitionPlan(
        dataset_id=dataset_id, sources=sources, phases=phases, seed=seed, order=order, batch_multiple=batch_multiple
    )
