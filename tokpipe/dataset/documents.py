"""Document outputs of a batch, from where documents start: never by looking for `</s>` among the ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class DocumentArrays(NamedTuple):
    """See `Batch` for shapes and meanings."""

    position_ids: Ints
    document_ids: Ints
    cu_seqlens: NDArray[np.int32]
    max_seqlen: int


def document_arrays(starts: Sequence[Ints], seq_len: int) -> DocumentArrays:
    """Positions, numbers and borders of the pieces of documents in a batch.

    Args:
        starts: for each sample, where documents start in its window, ascending. A start at 0 adds nothing, since a sample
            begins a piece anyway, and starts from `seq_len` on belong to no input.
        seq_len: tokens per sample.

    Example:
        >>> arrays = document_arrays([np.array([2]), np.array([0, 4])], seq_len=4)
        >>> arrays.cu_seqlens.tolist(), arrays.position_ids.tolist(), arrays.document_ids.tolist()
        ([0, 2, 4, 8], [[0, 1, 0, 1], [0, 1, 2, 3]], [[0, 0, 1, 1], [0, 0, 0, 0]])
    """
    total = len(starts) * seq_len
    begins_piece = np.zeros((len(starts), seq_len), dtype=np.bool_)
    begins_piece[:, 0] = True
    for row, found in enumerate(starts):
        begins_piece[row, found[found < seq_len]] = True
    borders = np.append(np.flatnonzero(begins_piece), total)
    lengths = np.diff(borders)
    position_ids = np.arange(total) - np.repeat(borders[:-1], lengths)
    # Numbered through the batch first; each sample then counts from its own first piece.
    rows = borders[:-1] // seq_len
    number = np.arange(len(rows)) - np.searchsorted(rows, rows)
    document_ids = np.repeat(number, lengths)
    shape = (len(starts), seq_len)
    return DocumentArrays(
        position_ids.reshape(shape), document_ids.reshape(shape), borders.astype(np.int32), int(lengths.max(initial=0))
    )


def mask_starts(labels: Ints, starts: Sequence[Ints], ignored: int) -> None:
    """Ignore, in place, the labels that would predict a document's first token from the document before it."""
    for row, found in enumerate(starts):
        labels[row, found[found > 0] - 1] = ignored
