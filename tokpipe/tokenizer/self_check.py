"""The proof in every build: a sample of the documents, encoded again by SentencePiece alone, must give the same ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokpipe.errors import SelfCheckError

# Mixed into the document hash, so that the sample and the held-out documents (small hashes) have nothing to do with each other.
SAMPLE_MULTIPLIER = np.uint64(0x9FB21C651E98DF25)
CONTEXT = 6


def self_check_rows(hashes: NDArray[np.uint64], fraction: float) -> NDArray[np.int64]:
    """The rows to check: each document by its content alone with probability `fraction`, so the same ones in every run.

    `hashes` are from `document_hashes`, (n,) uint64. Returns (k,) int64, ascending.

    Raises:
        ValueError: if `fraction` is not in [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be in [0, 1], got {fraction}")
    mixed = (hashes ^ (hashes >> np.uint64(29))) * SAMPLE_MULTIPLIER
    return np.flatnonzero((mixed >> np.uint64(11)) < np.uint64(round(fraction * 2**53))).astype(np.int64)


def check_documents(
    processor: Any,
    texts: pa.LargeStringArray,
    ids: NDArray[Any],
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    *,
    ends: tuple[Sequence[int], Sequence[int]],
    place: Callable[[int], str],
) -> int:
    """Compare `rows` of an encoded batch with SentencePiece; returns the bytes of text compared.

    `ends` are the ids put before and after every document, `place` names a row for the error.

    Raises:
        SelfCheckError: if a document's ids differ; shows the first difference with its surroundings in both encodings.
    """
    num_bytes = 0
    for row in rows.tolist():
        text = texts[row].as_py()
        num_bytes += len(text.encode())
        expected = [*ends[0], *processor.encode(text), *ends[1]]
        found = ids[offsets[row] : offsets[row + 1]].tolist()
        if found != expected:
            raise SelfCheckError(_describe(processor, place(row), expected, found))
    return num_bytes


def _describe(processor: Any, place: str, expected: list[int], found: list[int]) -> str:
    first = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(len(expected), len(found)))
    near = slice(max(0, first - CONTEXT), first + CONTEXT)

    def show(ids: list[int]) -> str:
        size = processor.vocab_size()
        return " ".join(f"{i}:{processor.id_to_piece(i)!r}" if 0 <= i < size else f"{i}:(no piece)" for i in ids[near])

    return (
        f"{place}: the ids differ from SentencePiece's from token {first:,} on"
        f" (expected {len(expected):,} ids, found {len(found):,}).\n"
        f"  SentencePiece: {show(expected)}\n  tokpipe:       {show(found)}\n"
        "This is a bug in tokpipe: please report it with the document. Nothing of this task was published."
    )
