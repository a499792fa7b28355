"""Where the samples of one rank lie: steps to shards and offsets, a few thousand at a time; and indices to steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokpipe.partition import PADDING, HeldOutPlan, PartitionPlan, Piece, TokenSpace, rank_positions

Plan = PartitionPlan | HeldOutPlan

CHUNK_SAMPLES = 4096
"""Samples that are located at once: enough for numpy's calls to cost little per sample."""
GAP_TOKENS = 1 << 15
"""Windows closer than this are read ahead in one go."""

Ints = NDArray[np.int64]


class Chunk(NamedTuple):
    """The samples of one rank in some consecutive steps of one phase."""

    plan: Plan
    """That located them: a chunk is worthless under another plan."""
    first_step: int
    stop_step: int
    per_rank: int
    seq_len: int
    shards: list[int]
    """Shard of each sample's first token, step by step; `PADDING` for a sample that only fills up. Lists, because they are
    read one number at a time."""
    starts: list[int]
    """Offset of that token in the shard."""
    coming: list[Piece]
    """What all these samples read, in few long pieces."""


def locate_chunk(plan: Plan, space: TokenSpace, step: int, *, dp_rank: int, dp_world_size: int) -> Chunk:
    """Find the samples of a step and of some that follow in its phase.

    Raises:
        PartitionError: if the step is negative or its batch does not divide among the ranks.
    """
    phase = plan.phase_at(step)
    positions = rank_positions(phase.global_batch_size, dp_rank=dp_rank, dp_world_size=dp_world_size)
    later = [other.start for other in plan.phases if other.start > step]
    stop = min([step + max(1, CHUNK_SAMPLES // len(positions)), *later])
    groups, samples = plan.locate(
        np.repeat(np.arange(step, stop), len(positions)), np.tile(np.arange(positions.start, positions.stop), stop - step)
    )
    shards, starts = space.find(space.group_starts[groups] + samples * phase.seq_len)
    real = samples != PADDING
    coming = join_windows(shards[real], starts[real], phase.seq_len + 1)
    shards[~real] = PADDING
    return Chunk(plan, step, stop, len(positions), phase.seq_len, shards.tolist(), starts.tolist(), coming)


def join_windows(shards: Ints, starts: Ints, width: int) -> list[Piece]:
    """Windows of tokens as few pieces, by reading small gaps along; what runs on into the next shard is cut off.

    Example:
        Windows of 10 tokens at 0, 10 and 200,000 of shard 3 are pieces (3, 0, 20) and (3, 200000, 200010).
    """
    if not len(shards):
        return []
    order = np.lexsort((starts, shards))
    shards, starts = shards[order], starts[order]
    new_piece = (np.diff(shards) != 0) | (np.diff(starts) > width + GAP_TOKENS)
    first = np.flatnonzero(np.concatenate(([True], new_piece)))
    last = np.append(first[1:], len(shards)) - 1
    return [
        Piece(*piece)
        for piece in zip(shards[first].tolist(), starts[first].tolist(), (starts[last] + width).tolist(), strict=True)
    ]


def phase_runs(plan: Plan, end: int | None) -> list[tuple[int, int | None]]:
    """(first step, number of steps) of each phase below step `end`; the last has no number if there is no end.

    Example:
        Phases that start at steps 0 and 100, up to step 150, are [(0, 100), (100, 50)].
    """
    starts = [phase.start for phase in plan.phases if end is None or phase.start < end]
    stops = [*starts[1:], end] if starts else []
    return [(start, None if stop is None else stop - start) for start, stop in zip(starts, stops, strict=True)]
