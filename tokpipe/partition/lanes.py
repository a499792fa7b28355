"""Lanes: who reads what, in numbers alone. `docs/lanes.md` is the whole idea.

Every position of the global batch is a lane: a contiguous run of one source's samples. Positions are apportioned to sources by
weight and lined up so that any run of neighbouring positions holds the sources in nearly the right proportion; a rank owns such
a run, and therefore neighbouring lanes of every source.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tokpipe.errors import PartitionError

MAX_SHARE_ERROR = Fraction(1, 20)
"""How far, relative to its weight, a source's share of the global batch may be off: 5 %."""

Ints = NDArray[np.int64]


def num_samples(num_tokens: int, seq_len: int) -> int:
    """Samples of `seq_len + 1` tokens, overlapping by one, that fit into `num_tokens`.

    Example:
        >>> num_samples(9, 4)  # tokens 0-4 and 4-8
        2
    """
    return max(0, num_tokens - 1) // seq_len


def sample_tokens(first: int, stop: int, seq_len: int) -> tuple[int, int]:
    """Half-open token range that samples [first, stop) read, the last label included.

    Example:
        >>> sample_tokens(1, 3, 4)
        (4, 13)
    """
    return first * seq_len, stop * seq_len + 1


def apportion(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers that sum to `total`, in proportion to `weights`: largest remainder, ties to the earlier one.

    Example:
        >>> apportion(10, [0.5, 0.33, 0.17])
        [5, 3, 2]

    Raises:
        PartitionError: if a weight is negative or not finite, or all are zero.
    """
    if not weights or not all(np.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise PartitionError(f"weights must be finite, not negative, and one of them positive; got {list(weights)}")
    exact = [Fraction(weight) for weight in weights]
    quotas = [total * weight / sum(exact) for weight in exact]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda i: counts[i] - quotas[i])
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return counts


def share_problem(counts: Sequence[int], weights: Sequence[float], names: Sequence[str]) -> str:
    """What is wrong with an apportionment, or "" if every source gets its share to within 5 %."""
    exact = [Fraction(weight) for weight in weights]
    total, whole = sum(counts), sum(exact)
    for count, weight, name in zip(counts, exact, names, strict=True):
        quota = total * weight / whole
        if weight and not count:
            return f"source {name!r} has a share of {float(weight / whole):.3g}, {float(quota):.3g} of {total} positions: no lane"
        if weight and abs(count - quota) > MAX_SHARE_ERROR * quota:
            return f"source {name!r} gets {count} of {total} positions where its weight asks for {float(quota):.2f}"
    return ""


def nearest_batch_sizes(global_batch_size: int, dp_world_size: int, weights: Sequence[float]) -> list[int]:
    """The next smaller and next larger multiple of `dp_world_size` at which every weight gets its share to within 5 %.

    Searches a bounded number of candidates; from ceil(20 / smallest share) on, every size works.
    """
    names = [str(i) for i in range(len(weights))]
    shares = [Fraction(weight) / sum(map(Fraction, weights)) for weight in weights if weight]
    always = -(-int(-(-1 // (MAX_SHARE_ERROR * min(shares)))) // dp_world_size) * dp_world_size
    base = global_batch_size // dp_world_size * dp_world_size
    found = []
    down = range(base, 0, -dp_world_size)
    up = range(base + dp_world_size, max(always, base + dp_world_size) + 1, dp_world_size)
    for candidates, fallback in ((down, None), (up, max(always, base + dp_world_size))):
        works = (g for g in candidates[:2000] if not share_problem(apportion(g, weights), weights, names))
        size = next(works, fallback)
        if size is not None:
            found.append(size)
    return found


def interleave(lane_counts: Sequence[int]) -> tuple[Ints, Ints]:
    """Line the lanes up as positions of the global batch.

    Each source's lanes come in order, and at every prefix of p positions a source with n of G lanes has more than n p / G - 1
    and fewer than n p / G + 1 of them. So a rank's run of G / D positions is off by less than two lanes in every source.

    Source: Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980): among the lanes that may come by now,
    take the one that must come first.

    Args:
        lane_counts: lanes of each source; zeros are allowed, the sum G is the global batch size.

    Returns:
        (G,) int64 source of each position, (G,) int64 lane within the source.

    Example:
        >>> [part.tolist() for part in interleave([2, 4])]
        [[1, 0, 1, 1, 0, 1], [0, 0, 1, 2, 1, 3]]
    """
    total = sum(lane_counts)
    active = [s for s, count in enumerate(lane_counts) if count]
    if len(active) == 1:
        return np.full(total, active[0], dtype=np.int64), np.arange(total, dtype=np.int64)
    scale = 2 * len(active) - 2
    waiting = [(_release(0, lane_counts[s], total, scale), s, 0) for s in active]  # (first position allowed, source, lane)
    heapq.heapify(waiting)
    ready: list[tuple[int, int, int]] = []  # (last position allowed, source, lane)
    sources, lanes = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    for position in range(total):
        while waiting and waiting[0][0] <= position:
            _, source, lane = heapq.heappop(waiting)
            heapq.heappush(ready, (_deadline(lane, lane_counts[source], total, scale), source, lane))
        _, source, lane = heapq.heappop(ready)
        sources[position], lanes[position] = source, lane
        if lane + 1 < lane_counts[source]:
            heapq.heappush(waiting, (_release(lane + 1, lane_counts[source], total, scale), source, lane + 1))
    return sources, lanes


def _release(lane: int, count: int, total: int, scale: int) -> int:
    """First position p at which (p + 1) count / total - lane >= 1 / scale."""
    return -(-(total + scale * lane * total) // (scale * count)) - 1


def _deadline(lane: int, count: int, total: int, scale: int) -> int:
    """Last position p at which p count / total - lane <= 1 - 1 / scale."""
    return ((scale - 1) * total + scale * lane * total) // (scale * count)


def rank_positions(global_batch_size: int, *, dp_rank: int, dp_world_size: int) -> range:
    """Positions of the global batch that one data-parallel rank reads: a run of neighbours, the same number for every rank.

    The batch itself is the same for every `dp_world_size`, so a run stopped on 64 ranks goes on with the same batches on 16.

    Example:
        >>> rank_positions(12, dp_rank=1, dp_world_size=4)
        range(3, 6)

    Raises:
        PartitionError: if `dp_rank` is out of range or the batch is not a multiple of `dp_world_size`.
    """
    if dp_world_size < 1 or not 0 <= dp_rank < dp_world_size:
        raise PartitionError(f"dp_rank must be in [0, dp_world_size), got dp_rank={dp_rank} and dp_world_size={dp_world_size}")
    per_rank, remainder = divmod(global_batch_size, dp_world_size)
    if remainder or not per_rank:
        nearest = sorted({max(1, per_rank) * dp_world_size, (per_rank + 1) * dp_world_size})
        raise PartitionError(
            f"a global batch of {global_batch_size} samples does not divide among {dp_world_size} data-parallel ranks; "
            f"the nearest that do: {' and '.join(map(str, nearest))}"
        )
    return range(dp_rank * per_rank, (dp_rank + 1) * per_rank)


def lanes_of_positions(sources: Ints, lanes: Ints, positions: range) -> dict[int, range]:
    """The lanes of each source that a run of positions holds: one range per source, because `interleave` keeps them in order."""
    mine: dict[int, range] = {}
    source_of, lane_of = sources[positions.start : positions.stop], lanes[positions.start : positions.stop]
    for source in np.unique(source_of).tolist():
        held = lane_of[source_of == source]
        mine[source] = range(int(held[0]), int(held[-1]) + 1)
    return mine
