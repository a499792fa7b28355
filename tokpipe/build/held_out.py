"""Which documents are held out: one rule, so that what is counted for the tokenizer is exactly what is trained on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Above the hash's low bits and far from 2**64, so that a fraction of 1e-9 still means something and 1.0 does not overflow.
HASH_BITS = 53


def held_out_mask(hashes: NDArray[np.uint64], fraction: float) -> NDArray[np.bool_]:
    """True for the documents that are held out. Equal documents always share a side, wherever they stand.

    Args:
        hashes: (n,) uint64 from `document_hashes`.
        fraction: in [0, 1).

    Returns:
        (n,) bool.
    """
    return (hashes >> np.uint64(64 - HASH_BITS)) < np.uint64(round(fraction * 2**HASH_BITS))


def take_documents(
    ids: NDArray[np.generic], offsets: NDArray[np.int64], mask: NDArray[np.bool_]
) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """The masked documents of a batch, in order: their ids (a copy, joined from runs of neighbours) and new offsets.

    Args:
        ids: (num_tokens,).
        offsets: (n + 1,) int64.
        mask: (n,) bool.

    Example:
        ids `[5, 6, 7, 8]`, offsets `[0, 1, 3, 4]`, mask `[True, False, True]` give `[5, 8]` and `[0, 1, 2]`.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    runs = [ids[offsets[start] : offsets[stop]] for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    lengths = np.diff(offsets)[mask]
    return (np.concatenate(runs) if runs else ids[:0]), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
