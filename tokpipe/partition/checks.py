"""Whether a batch can be laid out over the sources, and if not, what the nearest is that can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokpipe.errors import PartitionError
from tokpipe.partition.lanes import apportion, nearest_batch_sizes, num_samples, share_problem
from tokpipe.partition.phases import Phase


class SourceTokens(NamedTuple):
    """A source and how many tokens its shards hold together."""

    name: str
    num_tokens: int


def lane_counts(sources: Sequence[SourceTokens], phase: Phase, *, batch_multiple: int = 1) -> list[int]:
    """Lanes of each source in a phase, and at the end those of all sources joined: only one of the two kinds is not zero.

    Args:
        sources: in the dataset's order.
        phase: what is asked.
        batch_multiple: a suggested batch size is a multiple of this, the number of data-parallel ranks.

    Returns:
        len(sources) + 1 counts that sum to the global batch size.

    Raises:
        PartitionError: if a weight names no source, gets no lane or misses its share by more than 5 %, or a source has fewer
            samples than lanes; with the nearest that would work.
    """
    if phase.weights is None:
        counts = [0] * len(sources) + [phase.global_batch_size]
    else:
        weights = _weights_in_order(sources, phase)
        counts = [*apportion(phase.global_batch_size, weights), 0]
        problem = share_problem(counts[:-1], weights, [source.name for source in sources])
        if problem:
            nearest = nearest_batch_sizes(phase.global_batch_size, batch_multiple, weights)
            raise PartitionError(
                f"global_batch_size={phase.global_batch_size} cannot hold the weights to within 5 %: {problem}. "
                f"The nearest that can: {' and '.join(map(str, nearest))}"
            )
    for (name, num_tokens), lanes in zip(with_all(sources), counts, strict=True):
        _check_samples(name, num_tokens, lanes, sources, phase, batch_multiple)
    return counts


def with_all(sources: Sequence[SourceTokens]) -> list[SourceTokens]:
    """The sources, and behind them all of them joined, which is what a phase without weights reads."""
    return [*sources, SourceTokens("all sources", sum(source.num_tokens for source in sources))]


@dataclass(frozen=True, slots=True)
class Fit:
    """A layout that works, and what had to give way."""

    dp_world_size: int
    global_batch_size: int
    seq_len: int
    notice: str
    """Empty if everything is as asked."""


def fit_batch(
    sources: Sequence[SourceTokens],
    *,
    dp_world_size: int,
    global_batch_size: int,
    seq_len: int,
    weights: tuple[tuple[str, float], ...] | None = None,
) -> Fit | None:
    """The largest layout, no larger than asked, that these sources have samples for; None if there are not even two tokens.

    The batch gives way first, then the number of ranks, then the sequence length (halved until something fits).
    """
    asked = (dp_world_size, global_batch_size, seq_len)
    while seq_len >= 1:
        ranks = dp_world_size
        while ranks >= 1:
            size = largest_batch_size(
                sources, Phase(global_batch_size=global_batch_size, seq_len=seq_len, weights=weights), ranks
            )
            if size:
                found = (ranks, size, seq_len)
                return Fit(*found, notice="" if found == asked else _notice(sources, asked, found))
            ranks //= 2
        seq_len //= 2
    return None


def largest_batch_size(sources: Sequence[SourceTokens], phase: Phase, batch_multiple: int = 1) -> int:
    """The largest batch, no larger than the phase's and a multiple of `batch_multiple`, that can be laid out; 0 if none can.

    Raises:
        PartitionError: if a weight names no source.
    """
    weights = None if phase.weights is None else _weights_in_order(sources, phase)
    names = [source.name for source in sources]
    samples = [num_samples(tokens, phase.seq_len) for _, tokens in with_all(sources)]
    most = min(phase.global_batch_size, samples[-1] if weights is None else sum(samples[:-1]))
    for size in range(most // batch_multiple * batch_multiple, 0, -batch_multiple):
        if weights is None:
            return size
        counts = apportion(size, weights)
        if all(have >= lanes for have, lanes in zip(samples, counts, strict=False)) and not share_problem(counts, weights, names):
            return size
    return 0


def _weights_in_order(sources: Sequence[SourceTokens], phase: Phase) -> list[float]:
    given = dict(phase.weights or ())
    names = [source.name for source in sources]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise PartitionError(f"weights name {', '.join(map(repr, unknown))}; the dataset's sources are {', '.join(names)}")
    return [given.get(name, 0.0) for name in names]


def _check_samples(
    name: str, num_tokens: int, lanes: int, sources: Sequence[SourceTokens], phase: Phase, batch_multiple: int
) -> None:
    samples = num_samples(num_tokens, phase.seq_len)
    if samples >= lanes:
        return
    if not samples:
        raise PartitionError(
            f"{name}: seq_len={phase.seq_len} needs {phase.seq_len + 1:,} tokens for one sample and there are {num_tokens:,}; "
            f"the longest that works is {max(0, num_tokens - 1)}, or leave the source out of the weights"
        )
    largest = largest_batch_size(sources, phase, batch_multiple)
    advice = f"the largest global batch that works is {largest}" if largest else "use a smaller seq_len"
    raise PartitionError(
        f"{name}: {num_tokens:,} tokens are {samples:,} samples of seq_len={phase.seq_len}, too few for the {lanes:,} lanes that "
        f"it gets of global_batch_size={phase.global_batch_size}; {advice}"
    )


def _notice(sources: Sequence[SourceTokens], asked: tuple[int, int, int], found: tuple[int, int, int]) -> str:
    total = sum(source.num_tokens for source in sources)
    texts = [f"{ranks} ranks, global batch {size}, seq_len {length}" for ranks, size, length in (asked, found)]
    return f"{total:,} tokens are too few for {texts[0]}; the partition is the largest that works: {texts[1]}"
