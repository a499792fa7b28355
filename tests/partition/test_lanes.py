from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokpipe.errors import PartitionError
from tokpipe.partition.lanes import (
    apportion,
    interleave,
    lanes_of_positions,
    nearest_batch_sizes,
    num_samples,
    rank_positions,
    sample_tokens,
    share_problem,
)


@pytest.mark.parametrize(
    ("num_tokens", "seq_len", "expected"),
    [
        (0, 4, 0),
        (4, 4, 0),  # the last input would have no label
        (5, 4, 1),
        (8, 4, 1),
        (9, 4, 2),  # the middle token is a label of one and an input of the other
        (10**12, 2048, 488_281_249),
    ],
)
def test_num_samples(num_tokens, seq_len, expected):
    assert num_samples(num_tokens, seq_len) == expected
    if expected:
        assert sample_tokens(0, expected, seq_len)[1] <= num_tokens < sample_tokens(0, expected + 1, seq_len)[1]


@given(st.integers(0, 5000), st.lists(st.floats(0, 1e9), min_size=1, max_size=8).filter(any))
def test_apportion_sums_and_is_within_one(total, weights):
    counts = apportion(total, weights)
    assert sum(counts) == total
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - total * weight / sum(weights)) < 1 + 1e-6 * total
        assert weight or not count


@pytest.mark.parametrize("weights", [[], [0.0], [-1.0, 2.0], [float("nan")], [float("inf"), 1.0]])
def test_apportion_refuses_weights_that_say_nothing(weights):
    with pytest.raises(PartitionError, match="weights must be finite"):
        apportion(8, weights)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=9).filter(any))
def test_interleave_keeps_lanes_in_order_and_every_prefix_in_proportion(counts):
    sources, lanes = interleave(counts)
    total = sum(counts)
    for source, count in enumerate(counts):
        assert lanes[sources == source].tolist() == list(range(count))
        held = np.cumsum(sources == source)
        # Tijdeman's bound, which no line-up can better for every mixture.
        furthest = abs(held - count * np.arange(1, total + 1) / total).max()
        assert furthest <= 1 - 1 / max(1, 2 * np.count_nonzero(counts) - 2) + 1e-9


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.sampled_from([1, 2, 3, 4, 6, 8]))
def test_rank_holds_neighbouring_lanes_less_than_two_from_its_share(counts, world):
    counts = [count * world for count in counts]
    sources, lanes = interleave(counts)
    seen = {source: [] for source in range(len(counts))}
    for rank in range(world):
        mine = lanes_of_positions(sources, lanes, rank_positions(sum(counts), dp_rank=rank, dp_world_size=world))
        for source, held in mine.items():
            seen[source] += held
        assert all(abs(len(mine.get(source, ())) - count / world) < 2 for source, count in enumerate(counts))
    assert all(seen[source] == list(range(count)) for source, count in enumerate(counts))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=2, max_size=4), st.integers(1, 200), st.sampled_from([1, 2, 8]))
def test_nearest_batch_sizes_work(weights, size, multiple):
    names = [str(i) for i in range(len(weights))]
    for found in nearest_batch_sizes(size, multiple, weights):
        assert found % multiple == 0
        assert not share_problem(apportion(found, weights), weights, names)


def test_nearest_batch_size_of_a_tiny_weight_is_found_at_once():
    assert nearest_batch_sizes(64, 8, [1.0, 1e-7]) == [200_000_024]
