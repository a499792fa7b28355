from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokpipe.partition.order import ORDERS, block_samples, lane_key, lane_order, mix, permute, unpermute


def arrays(size, key):
    return np.arange(size), np.full(size, size), np.full(size, key, dtype=np.uint64)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_permute_is_a_bijection_and_unpermute_its_inverse(size, key):
    index, sizes, keys = arrays(size, key)
    there = permute(index, sizes, keys)
    assert sorted(there.tolist()) == index.tolist()
    assert (unpermute(there, sizes, keys) == index).all()


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 2000), st.integers(1, 300), st.integers(0, 2**64 - 1), st.sampled_from(ORDERS))
def test_lane_order_is_a_bijection_for_any_block(length, block, key, order):
    index, sizes, keys = arrays(length, key)
    there = lane_order(order, index, sizes, np.full(length, block), keys)
    assert sorted(there.tolist()) == index.tolist()


@pytest.mark.parametrize("size", [2**31, 10**12, 2**61])
def test_permute_of_huge_ranges_inverts(size):
    index = np.array([0, 1, 12345, size // 2, size - 1])
    sizes, keys = np.full(5, size), np.full(5, 99, dtype=np.uint64)
    there = permute(index, sizes, keys)
    assert len(set(there.tolist())) == 5
    assert there.min() >= 0 and there.max() < size
    assert (unpermute(there, sizes, keys) == index).all()


def test_permute_takes_any_mixture_of_sizes_and_keys_at_once():
    cases = [(index, size, key) for size in (1, 2, 5, 77) for key in (0, 9) for index in range(0, size, 3)]
    index, size, key = zip(*cases, strict=True)
    together = permute(np.array(index), np.array(size), np.array(key, np.uint64))
    alone = [int(permute(np.array([i]), np.array([n]), np.array([k], np.uint64))[0]) for i, n, k in cases]
    assert together.tolist() == alone


def test_permutations_do_not_change_between_versions():
    # A saved state is worth nothing if the same key gives another order tomorrow.
    assert permute(*arrays(10, 7)).tolist() == [4, 8, 2, 6, 3, 5, 7, 1, 0, 9]
    key = lane_key(5, np.array([0]), np.array([1]), np.array([2]))
    assert key.tolist() == [2470020116851959328]


def test_every_position_is_equally_likely():
    # 40,000 keys: each of 20 places holds each of 20 samples 2,000 times, give or take five standard deviations.
    keys = mix(np.arange(40_000, dtype=np.uint64))
    for place in (0, 7, 19):
        got = np.bincount(permute(np.full(40_000, place), np.full(40_000, 20), keys), minlength=20)
        assert abs(got - 2000).max() < 5 * (2000 * 0.95) ** 0.5


def test_blocks_are_read_one_at_a_time():
    index, sizes, keys = arrays(1000, 3)
    order = lane_order("blocks", index, sizes, np.full(1000, 64), keys)
    blocks = order // 64
    changes = np.flatnonzero(np.diff(blocks)) + 1
    assert len(changes) == 15  # 16 blocks, the short one among them, each visited once
    assert len(set(blocks.tolist())) == 16
    assert (np.diff(order) != 1).mean() > 0.9


def test_short_last_block_comes_anywhere():
    places = set()
    for key in range(40):
        index, sizes, keys = arrays(70, key)
        order = lane_order("blocks", index, sizes, np.full(70, 16), keys)
        places.add(int(np.flatnonzero(order >= 64)[0]))
    assert places == {0, 16, 32, 48, 64}


def test_keys_of_neighbours_are_unrelated():
    lanes = lane_key(0, np.zeros(1000, np.int64), np.zeros(1000, np.int64), np.arange(1000))
    epochs = lane_key(0, np.zeros(1000, np.int64), np.arange(1000), np.zeros(1000, np.int64))
    sources = lane_key(0, np.arange(1000), np.zeros(1000, np.int64), np.zeros(1000, np.int64))
    seeds = np.concatenate([lane_key(s, np.array([0]), np.array([0]), np.array([0])) for s in range(-5, 1000)])
    assert len(set(np.concatenate([lanes, epochs, sources, seeds]).tolist())) == 4005 - 3


@pytest.mark.parametrize(
    ("lane_length", "seq_len", "expected"),
    [
        (238_418, 2048, 256),  # a trillion tokens in lanes of 2,048: 1 MiB of uint16
        (1192, 2048, 74),  # 16 blocks
        (10, 2048, 1),  # a tiny lane is permuted sample by sample
        (100, 2**20, 1),  # a sample longer than a block is a block
    ],
)
def test_block_samples(lane_length, seq_len, expected):
    assert block_samples(lane_length, seq_len) == expected
