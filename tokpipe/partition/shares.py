"""What one data-parallel rank reads: lanes, samples, files and byte ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokpipe.partition.lanes import lanes_of_positions, rank_positions, sample_tokens
from tokpipe.partition.plan import PartitionPlan
from tokpipe.partition.token_space import Piece, TokenSpace


@dataclass(frozen=True, slots=True)
class SourceShare:
    """A rank's part of one source: neighbouring lanes, so one contiguous run of samples and of bytes."""

    group: int
    source: str
    lanes: range
    samples: range
    tokens: tuple[int, int]
    """Half-open range of tokens of the source."""
    pieces: tuple[Piece, ...]
    """The same range, shard by shard."""


def rank_share(
    plan: PartitionPlan, space: TokenSpace, *, dp_rank: int, dp_world_size: int, step: int = 0
) -> tuple[SourceShare, ...]:
    """What a rank reads in whole epochs of the phase that `step` lies in.

    Raises:
        PartitionError: if the rank is out of range or the batch does not divide.
    """
    phase = plan.phase_at(step)
    positions = rank_positions(phase.global_batch_size, dp_rank=dp_rank, dp_world_size=dp_world_size)
    per_lane = plan.steps_per_epoch(step)
    names = plan.group_names
    shares = []
    for group, lanes in lanes_of_positions(*plan.lanes_at(step), positions).items():
        length = per_lane[names[group]]
        samples = range(lanes.start * length, lanes.stop * length)
        tokens = sample_tokens(samples.start, samples.stop, phase.seq_len)
        begin = int(space.group_starts[group])
        pieces = space.pieces(begin + tokens[0], begin + tokens[1])
        shares.append(SourceShare(group, names[group], lanes, samples, tokens, tuple(pieces)))
    return tuple(shares)


def share_as_dict(share: SourceShare, space: TokenSpace, itemsize: int) -> dict[str, Any]:
    """A share in plain JSON types, with byte ranges of `.bin` files."""
    return {
        "source": share.source,
        "lanes": [share.lanes.start, share.lanes.stop],
        "samples": [share.samples.start, share.samples.stop],
        "tokens": list(share.tokens),
        "files": [
            {"file": f"{space.shards[piece.shard].name}.bin", "bytes": [piece.start * itemsize, piece.stop * itemsize]}
            for piece in share.pieces
        ],
    }
