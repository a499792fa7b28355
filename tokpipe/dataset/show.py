"""Where the tokens of a batch come from: what a person needs to look at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tokpipe.dataset.token_dataset import TokenDataset
from tokpipe.partition import PADDING


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePiece:
    """A run of a sample's tokens from one document."""

    source: str
    shard: str
    """Name of the shard, inside the dataset folder."""
    document: int
    """Number of the document in its shard."""
    starts_document: bool
    """Whether the run begins with the document's first token."""
    start: int
    """Offset of the first token in the shard."""
    ids: NDArray[Any]
    """(n,) view of the shard."""


def sample_pieces(dataset: TokenDataset, step: int, first: int, count: int) -> list[list[SamplePiece]]:
    """The documents of some samples of this rank at a step, seq_len + 1 tokens each; a sample that only fills up has none.

    Raises:
        PartitionError: if the share has no such samples.
    """
    chunk = dataset.chunk_at(step, first, count)
    begin = (step - chunk.first_step) * chunk.per_rank + first
    return [
        [] if chunk.shards[i] == PADDING else _pieces(dataset, chunk.shards[i], chunk.starts[i], chunk.seq_len + 1)
        for i in range(begin, begin + count)
    ]


def _pieces(dataset: TokenDataset, shard: int, start: int, width: int) -> list[SamplePiece]:
    found = []
    first = int(dataset.space.starts[shard]) + start
    for part in dataset.space.pieces(first, first + width):
        entry = dataset.space.shards[part.shard]
        opened = dataset.open_shard(part.shard)
        starts = opened.document_starts(part.start, part.stop).tolist()
        borders = sorted({part.start, *starts})
        for border, stop in zip(borders, [*borders[1:], part.stop], strict=True):
            found.append(
                SamplePiece(
                    source=entry.source,
                    shard=entry.name,
                    document=opened.document_of_token(border),
                    starts_document=border in starts,
                    start=border,
                    ids=opened.tokens[border:stop],
                )
            )
    return found
