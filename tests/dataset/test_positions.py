from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokpipe.dataset import TokenDataset
from tokpipe.dataset.positions import GAP_TOKENS, join_windows, phase_runs
from tokpipe.partition import PartitionPlan, Phase, SourceTokens


def test_join_windows_of_the_docstring():
    pieces = join_windows(np.array([3, 3, 3]), np.array([200_000, 0, 10]), 10)
    assert pieces == [(3, 0, 20), (3, 200_000, 200_010)]
    assert join_windows(np.array([], dtype=np.int64), np.array([], dtype=np.int64), 10) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6)), min_size=1, max_size=60), st.integers(1, 5000))
def test_join_windows_covers_every_window_in_pieces_far_apart(windows, width):
    shards, starts = (np.array(column) for column in zip(*windows, strict=True))
    pieces = join_windows(shards, starts, width)
    for shard, start in windows:
        assert any(piece.shard == shard and piece.start <= start and start + width <= piece.stop for piece in pieces)
    for one, other in pairwise(pieces):
        assert one.shard < other.shard or other.start > one.stop + GAP_TOKENS


@pytest.mark.parametrize(
    ("starts", "end", "expected"),
    [
        ([0], 7, [(0, 7)]),
        ([0], None, [(0, None)]),
        ([0, 100], 150, [(0, 100), (100, 50)]),
        ([0, 100], 60, [(0, 60)]),
        ([0, 100], None, [(0, 100), (100, None)]),
        ([0], 0, []),
    ],
)
def test_phase_runs(starts, end, expected):
    phases = [Phase(start=start, global_batch_size=1, seq_len=1) for start in starts]
    plan = PartitionPlan(dataset_id="d", sources=[SourceTokens("main", 10)], phases=phases)
    assert phase_runs(plan, end) == expected


def test_a_chunk_ends_with_its_phase(tmp_path, dataset_writer):
    dataset_writer(tmp_path, [("main", False, [400])])
    phases = [{"global_batch_size": 4, "seq_len": 4}, {"start": 3, "global_batch_size": 6, "seq_len": 2}]
    dataset = TokenDataset(tmp_path, phases=phases)
    first, second = dataset.chunk_at(1, 0, 4), dataset.chunk_at(3, 0, 6)
    assert (first.first_step, first.stop_step, first.per_rank, first.seq_len) == (1, 3, 4, 4)
    assert (second.first_step, second.per_rank, second.seq_len) == (3, 6, 2)


def test_reading_ahead_opens_no_more_shards_than_may_be_open(tmp_path, dataset_writer):
    dataset_writer(tmp_path, [("main", False, [50]) for _ in range(6)])
    dataset = TokenDataset(tmp_path, seq_len=4, global_batch_size=6, max_open_shards=3)
    dataset.read(0, 0, 1)
    assert dataset._store.num_open <= 2
    dataset = TokenDataset(tmp_path, seq_len=4, global_batch_size=6)
    dataset.read(0, 0, 1)
    assert dataset._store.num_open == 6
