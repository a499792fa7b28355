"""Cut an inventory into splits: which files, byte ranges and row groups one task reads.

Pure arithmetic over sizes. It is never told how many workers there are, so the output bytes cannot depend on them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WHOLE = 0
RANGES = 1
ROW_GROUPS = 2

# How much text a compressed stream is taken to hold when small files are packed together; gzip and zstd reach 3 to 5.
EXPANSION = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PartArrays:
    """Every part of every split, in order: struct of arrays, so that a million files stay small."""

    file: NDArray[np.int64]
    """(num_parts,) row of the inventory."""
    start: NDArray[np.int64]
    """(num_parts,) first byte or row group; 0 for a whole file."""
    stop: NDArray[np.int64]
    """(num_parts,) end byte or row group, half-open; -1 for a whole file."""
    num_bytes: NDArray[np.int64]
    """(num_parts,) share of the file's size, in bytes."""
    split_starts: NDArray[np.int64]
    """(num_splits + 1,) parts of split i are [split_starts[i], split_starts[i + 1])."""


def pack_files(weights: Sequence[int], *, split_bytes: int) -> list[int]:
    """Return where to cut a run of files so that each group weighs at most `split_bytes`, kept in order.

    A file that is heavier alone is a group of its own. The result starts with 0 and ends with the number of files.

    Example:
        `pack_files([5, 5, 5, 20, 1], split_bytes=10)` is `[0, 2, 3, 4, 5]`.
    """
    cuts = [0]
    held = 0
    for index, weight in enumerate(weights):
        if held + weight > split_bytes and index > cuts[-1]:
            cuts.append(index)
            held = 0
        held += weight
    if weights:
        cuts.append(len(weights))
    return cuts


def cut_range(num_bytes: int, *, split_bytes: int) -> list[tuple[int, int]]:
    """Return nearly equal byte ranges of at most `split_bytes` that cover a file.

    Example:
        `cut_range(10, split_bytes=4)` is `[(0, 3), (3, 6), (6, 10)]`.
    """
    count = max(1, -(-num_bytes // split_bytes))
    edges = [num_bytes * i // count for i in range(count + 1)]
    return list(itertools.pairwise(edges))


def cut_row_groups(sizes: Sequence[int], *, split_bytes: int) -> list[tuple[int, int]]:
    """Return runs of neighbouring row groups of at most `split_bytes` (one larger group stands alone).

    Example:
        `cut_row_groups([4, 4, 4], split_bytes=8)` is `[(0, 2), (2, 3)]`.
    """
    cuts = pack_files(sizes, split_bytes=split_bytes)
    return list(itertools.pairwise(cuts))


def plan_parts(
    num_bytes: NDArray[np.int64],
    source: NDArray[np.int64],
    cutting: NDArray[np.int8],
    weight: NDArray[np.int64],
    row_groups: Mapping[int, Sequence[int]],
    *,
    split_bytes: int,
) -> PartArrays:
    """Lay every file of an inventory into splits.

    Splits come in the order of the sources' numbers, inside a source in the order of the files. Files up to `split_bytes` are
    packed together; a larger one is cut into splits of its own where `cutting` allows it. Empty files are left out.

    Args:
        num_bytes: (num_files,) sizes.
        source: (num_files,) number of each file's source.
        cutting: (num_files,) `WHOLE`, `RANGES` or `ROW_GROUPS`.
        weight: (num_files,) bytes of text each is taken to hold when files are packed.
        row_groups: file -> bytes of each of its row groups, for the large files that have some.
        split_bytes: about how much one split holds.

    Raises:
        ValueError: if `split_bytes` is below 1.
    """
    if split_bytes < 1:
        raise ValueError(f"split_bytes must be at least 1, got {split_bytes}")
    builder = _Builder(split_bytes)
    order = np.argsort(source, kind="stable")
    order = order[num_bytes[order] > 0]
    large = (num_bytes > split_bytes) & (cutting != WHOLE)
    run: list[int] = []
    for index in order.tolist():
        if large[index] or (run and source[run[0]] != source[index]):
            builder.pack(run, num_bytes, weight)
            run = []
        if not large[index]:
            run.append(index)
        elif cutting[index] == RANGES:
            builder.cut(index, cut_range(int(num_bytes[index]), split_bytes=split_bytes), None)
        else:
            sizes = row_groups.get(index, ())
            builder.cut(index, cut_row_groups(sizes, split_bytes=split_bytes), sizes)
    builder.pack(run, num_bytes, weight)
    return builder.arrays()


class _Builder:
    """Collects parts in lists of plain integers."""

    def __init__(self, split_bytes: int) -> None:
        self._split_bytes = split_bytes
        self._rows: list[tuple[int, int, int, int]] = []
        self._starts = [0]

    def pack(self, files: list[int], num_bytes: NDArray[np.int64], weight: NDArray[np.int64]) -> None:
        """Add whole files, several to a split."""
        cuts = pack_files(weight[files].tolist() if files else [], split_bytes=self._split_bytes)
        for start, stop in itertools.pairwise(cuts):
            chosen = files[start:stop]
            self._rows += [(index, 0, -1, size) for index, size in zip(chosen, num_bytes[chosen].tolist(), strict=True)]
            self._starts.append(len(self._rows))

    def cut(self, index: int, ranges: list[tuple[int, int]], sizes: Sequence[int] | None) -> None:
        """Add the ranges of one large file, each as a split; `sizes` are its row groups' bytes, if they are row groups."""
        for start, stop in ranges:
            share = stop - start if sizes is None else sum(sizes[start:stop])
            self._rows.append((index, start, stop, share))
            self._starts.append(len(self._rows))

    def arrays(self) -> PartArrays:
        """Return everything added so far."""
        table = np.array(self._rows, dtype=np.int64).reshape(-1, 4)
        file, start, stop, num_bytes = (np.ascontiguousarray(table[:, i]) for i in range(4))
        return PartArrays(
            file=file, start=start, stop=stop, num_bytes=num_bytes, split_starts=np.array(self._starts, dtype=np.int64)
        )
