"""The plan: arithmetic over sizes, the same for any number of workers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokpipe.corpus.splits import RANGES, ROW_GROUPS, WHOLE, cut_range, cut_row_groups, pack_files, plan_parts


@pytest.mark.parametrize(
    ("weights", "split_bytes", "cuts"),
    [
        ([], 10, [0]),
        ([5], 10, [0, 1]),
        ([5, 5], 10, [0, 2]),  # exactly full
        ([5, 6], 10, [0, 1, 2]),
        ([50, 1], 10, [0, 1, 2]),  # larger alone
        ([1, 50, 1, 1], 10, [0, 1, 2, 4]),
        ([0, 0, 0], 10, [0, 3]),
    ],
)
def test_pack_files(weights, split_bytes, cuts):
    assert pack_files(weights, split_bytes=split_bytes) == cuts


@given(num_bytes=st.integers(1, 10_000), split_bytes=st.integers(1, 3_000))
def test_cut_range_covers_every_byte_once(num_bytes, split_bytes):
    ranges = cut_range(num_bytes, split_bytes=split_bytes)
    assert [byte for start, stop in ranges for byte in range(start, stop)] == list(range(num_bytes))
    sizes = [stop - start for start, stop in ranges]
    assert max(sizes) <= split_bytes and max(sizes) - min(sizes) <= 1


@given(sizes=st.lists(st.integers(0, 100), max_size=50), split_bytes=st.integers(1, 300))
def test_cut_row_groups_keeps_every_group_once(sizes, split_bytes):
    runs = cut_row_groups(sizes, split_bytes=split_bytes)
    assert [group for start, stop in runs for group in range(start, stop)] == list(range(len(sizes)))
    assert all(sum(sizes[start:stop]) <= split_bytes or stop - start == 1 for start, stop in runs)


def plan(files, *, split_bytes, row_groups=None):
    """files: (num_bytes, source, cutting)."""
    size, source, cutting = (np.array(column, dtype=np.int64) for column in zip(*files, strict=True))
    parts = plan_parts(size, source, cutting.astype(np.int8), size, row_groups or {}, split_bytes=split_bytes)
    rows = list(zip(parts.file.tolist(), parts.start.tolist(), parts.stop.tolist(), parts.num_bytes.tolist(), strict=True))
    starts = parts.split_starts.tolist()
    return [rows[a:b] for a, b in itertools.pairwise(starts)]


def test_plan_parts_packs_cuts_and_keeps_sources_apart():
    files = [
        (4, 1, WHOLE),  # of the second source
        (4, 0, WHOLE),
        (25, 0, RANGES),  # cut in three
        (0, 0, WHOLE),  # empty: left out
        (4, 0, RANGES),  # small: packed
        (4, 0, WHOLE),
        (25, 0, WHOLE),  # large but never cut
        (25, 0, ROW_GROUPS),
    ]
    assert plan(files, split_bytes=10, row_groups={7: [5, 5, 9, 1, 1]}) == [
        [(1, 0, -1, 4)],
        [(2, 0, 8, 8)],
        [(2, 8, 16, 8)],
        [(2, 16, 25, 9)],
        [(4, 0, -1, 4), (5, 0, -1, 4)],
        [(6, 0, -1, 25)],
        [(7, 0, 2, 10)],
        [(7, 2, 4, 10)],
        [(7, 4, 5, 1)],
        [(0, 0, -1, 4)],
    ]


def test_plan_parts_of_nothing_is_no_split():
    assert plan([(0, 0, WHOLE)], split_bytes=10) == []


@pytest.mark.parametrize("split_bytes", [0, -1])
def test_plan_parts_refuses_a_size_below_one(split_bytes):
    with pytest.raises(ValueError, match="at least 1"):
        plan([(1, 0, WHOLE)], split_bytes=split_bytes)
