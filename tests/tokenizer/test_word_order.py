"""Comparing, sorting and merging words against plain Python."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokpipe.tokenizer import word_order as kernels


def as_keys(words: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.concatenate([[0], np.cumsum([len(word) for word in words])]).astype(np.int64)
    return np.frombuffer(b"".join(words), np.uint8).copy(), starts


def from_keys(keys: np.ndarray, starts: np.ndarray) -> list[bytes]:
    return [keys[a:b].tobytes() for a, b in pairwise(starts)]


# Few letters and long common beginnings, zero bytes too: what a radix sort on eight bytes gets wrong first.
byte_words = st.lists(st.text("ab\0", min_size=1, max_size=30).map(str.encode), unique=True, max_size=60)


@settings(deadline=None)
@given(byte_words, st.sampled_from([1, 16]))
def test_sort_words_sorts_by_bytes(words, repeat):
    # The same words behind 16 equal beginnings: large groups too, which are sorted by the next eight bytes.
    words = [b"ab\0abababab"[:n] + word for n in range(repeat) for word in words]
    words = list(dict.fromkeys(words))
    keys, starts = as_keys(words)
    order = kernels.sort_words(keys, starts)
    assert [words[i] for i in order] == sorted(words)
    taken = from_keys(*kernels.take_words(keys, starts, order))
    assert taken == sorted(words)


def test_words_of_two_groups_that_go_on_alike_stay_apart():
    # The second eight bytes of `aaaaaaaacccccccc...` and `bbbbbbbbcccccccc...` are equal, of the last and the first of a group.
    words = [beginning + b"c" * 8 + bytes([end]) for beginning in (b"a" * 8, b"b" * 8) for end in range(97, 123)]
    keys, starts = as_keys(words[::-1])
    assert [words[::-1][i] for i in kernels.sort_words(keys, starts)] == words


@settings(deadline=None)
@given(st.binary(max_size=20), st.binary(max_size=20))
def test_compare_words_agrees_with_python(left, right):
    a, b = (np.frombuffer(word + b"xx", np.uint8).copy() for word in (left, right))
    order = kernels.compare_words(a, 0, len(left), b, 0, len(right))
    assert np.sign(order) == (left > right) - (left < right)


rows = st.dictionaries(st.tuples(st.text("ab ", min_size=1, max_size=12).map(str.encode), st.integers(0, 3)), st.integers(1, 9))


def as_rows(counts: dict[tuple[bytes, int], int]) -> tuple[np.ndarray, ...]:
    ordered = sorted(counts)
    keys, starts = as_keys([word for word, _ in ordered])
    sources = np.array([source for _, source in ordered], np.uint16)
    return keys, starts, sources, np.array([counts[row] for row in ordered], np.int64)


@settings(deadline=None)
@given(rows, rows)
def test_merge_rows_adds_equal_rows_and_keeps_the_order(left, right):
    keys, starts, sources, counts = kernels.merge_rows(as_rows(left), as_rows(right))
    found = list(zip(from_keys(keys, starts), sources.tolist(), strict=True))
    assert found == sorted({*left, *right})
    assert counts.tolist() == [left.get(row, 0) + right.get(row, 0) for row in found]


@settings(deadline=None)
@given(rows, st.text("ab ", min_size=1, max_size=4).map(str.encode), st.integers(0, 3))
def test_upper_bound_counts_rows_up_to_a_row(counts, word, source):
    keys, starts, sources, _ = as_rows(counts)
    found = kernels.upper_bound(keys, starts, sources, np.frombuffer(word, np.uint8).copy(), source)
    assert found == sum(row <= (word, source) for row in counts)
