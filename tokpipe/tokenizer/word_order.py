"""Numba kernels for words in order: compare, sort, copy in an order, merge sorted rows.

Words lie one behind the other in `keys`; word w is `keys[starts[w] : starts[w + 1]]`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from tokpipe.tokenizer.hashing import copy_bytes, load_part
from tokpipe.tokenizer.jit import kernel, kernel_part

# Groups of at most this many words are sorted by comparing them; larger ones by the next eight bytes.
FEW_WORDS = 4

Rows: TypeAlias = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint16], NDArray[np.int64]]
"""(keys, starts, sources, counts) of rows sorted by (word, source)."""


@kernel_part
def compare_words(
    left: NDArray[np.uint8], left_start: int, left_end: int, right: NDArray[np.uint8], right_start: int, right_end: int
) -> np.int64:
    """Below 0, 0 or above 0, as the left word's bytes sort before, equal to or after the right word's."""
    common = min(left_end - left_start, right_end - right_start)
    i = 0
    while i < common:
        size = min(8, common - i)
        a = load_part(left, left_start + i, size, len(left))
        b = load_part(right, right_start + i, size, len(right))
        if a != b:
            while (a & uint64(255)) == (b & uint64(255)):
                a >>= uint64(8)
                b >>= uint64(8)
            return np.int64(a & uint64(255)) - np.int64(b & uint64(255))
        i += size
    return np.int64((left_end - left_start) - (right_end - right_start))


@kernel_part
def _prefix(keys: NDArray[np.uint8], start: int, end: int) -> Any:
    """Up to eight bytes as a big-endian number, zeros behind: numbers compare as the bytes do."""
    if end <= start:
        return uint64(0)
    word = load_part(keys, start, min(8, end - start), len(keys))
    word = ((word & uint64(0x00FF00FF00FF00FF)) << uint64(8)) | ((word >> uint64(8)) & uint64(0x00FF00FF00FF00FF))
    word = ((word & uint64(0x0000FFFF0000FFFF)) << uint64(16)) | ((word >> uint64(16)) & uint64(0x0000FFFF0000FFFF))
    return (word << uint64(32)) | (word >> uint64(32))


@kernel
def _fill_prefixes(
    keys: NDArray[np.uint8], starts: NDArray[np.int64], words: NDArray[np.int64], depth: int, out: NDArray[np.uint64]
) -> None:
    """The eight bytes of each word from `depth` on."""
    for j in range(len(words)):
        out[j] = _prefix(keys, starts[words[j]] + depth, starts[words[j] + 1])


@kernel
def _deal(
    by_prefix: NDArray[np.int64],
    groups: NDArray[np.int64],
    next_slot: NDArray[np.int64],
    words: NDArray[np.int64],
    prefixes: NDArray[np.uint64],
    out_words: NDArray[np.int64],
    out_prefixes: NDArray[np.uint64],
) -> None:
    """Put words, taken by their prefixes, each into the next slot of its own group: every group is sorted then."""
    for j in range(len(by_prefix)):
        k = by_prefix[j]
        slot = next_slot[groups[k]]
        next_slot[groups[k]] += 1
        out_words[slot], out_prefixes[slot] = words[k], prefixes[k]


@kernel
def _sort_ties(keys: NDArray[np.uint8], starts: NDArray[np.int64], order: NDArray[np.int64], tied: NDArray[np.bool_]) -> None:
    """Sort each run of words that are tied to the one before by comparing them."""
    low = 0
    for j in range(1, len(order)):
        if not tied[j]:
            low = j
            continue
        word, k = order[j], j
        while k > low:
            before = order[k - 1]
            if compare_words(keys, starts[before], starts[before + 1], keys, starts[word], starts[word + 1]) <= 0:
                break
            order[k] = before
            k -= 1
        order[k] = word


def sort_words(keys: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order that sorts distinct words by their bytes: eight bytes at a time from the front, few alike by comparing them."""
    order, prefixes = np.arange(len(starts) - 1), np.empty(len(starts) - 1, np.uint64)
    _fill_prefixes(keys, starts, order, 0, prefixes)
    order = np.argsort(prefixes)
    tied = _equal_to_before(prefixes[order])
    # Of `order`, the places whose words are alike so far in groups of many, and the group of each.
    places, groups = _large_groups(tied)
    depth, longest = 8, int(np.diff(starts).max(initial=0))
    # Words that differ only in how many zero bytes end them are alike to the last; they are told apart at the end.
    while len(places) and depth < longest:
        words, prefixes = order[places], np.empty(len(places), np.uint64)
        _fill_prefixes(keys, starts, words, depth, prefixes)
        sorted_words, sorted_prefixes = np.empty_like(words), np.empty_like(prefixes)
        sizes = np.bincount(groups)
        _deal(np.argsort(prefixes), groups, np.cumsum(sizes) - sizes, words, prefixes, sorted_words, sorted_prefixes)
        order[places] = sorted_words
        alike = _equal_to_before(sorted_prefixes) & _equal_to_before(groups)
        tied[places] = alike
        kept, groups = _large_groups(alike)
        places = places[kept]
        depth += 8
    _sort_ties(keys, starts, order, tied)
    return order


def _equal_to_before(values: NDArray[Any]) -> NDArray[np.bool_]:
    """(n,) whether each value is that of the one before; the first is not."""
    equal = np.zeros(len(values), np.bool_)
    equal[1:] = values[1:] == values[:-1]
    return equal


def _large_groups(alike: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(places, number of the group of each) of the runs of more than `FEW_WORDS` that are alike to the one before."""
    firsts = np.flatnonzero(~alike)
    sizes = np.diff(firsts, append=len(alike))
    many = sizes > FEW_WORDS
    return np.flatnonzero(np.repeat(many, sizes)), np.repeat(np.arange(np.count_nonzero(many)), sizes[many])


def take_words(
    keys: NDArray[np.uint8], starts: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Copy words in the given order: their bytes one behind the other, and (n + 1,) offsets."""
    out_starts = np.zeros(len(order) + 1, np.int64)
    np.cumsum(np.diff(starts)[order], out=out_starts[1:])
    out = np.empty(out_starts[-1], np.uint8)
    _copy_words(keys, starts, order, out, out_starts)
    return out, out_starts


@kernel
def _copy_words(
    keys: NDArray[np.uint8],
    starts: NDArray[np.int64],
    order: NDArray[np.int64],
    out: NDArray[np.uint8],
    out_starts: NDArray[np.int64],
) -> None:
    for j in range(len(order)):
        copy_bytes(keys, starts[order[j]], out, out_starts[j], out_starts[j + 1] - out_starts[j])


@kernel
def upper_bound(
    keys: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sources: NDArray[np.uint16],
    word: NDArray[np.uint8],
    source: int,
) -> int:
    """How many rows, sorted by (word, source), are at most the given one."""
    low, high = 0, len(sources)
    while low < high:
        middle = (low + high) >> 1
        order = compare_words(keys, starts[middle], starts[middle + 1], word, 0, len(word))
        if order < 0 or (order == 0 and sources[middle] <= source):
            low = middle + 1
        else:
            high = middle
    return low


def merge_rows(a: Rows, b: Rows) -> Rows:
    """Merge two blocks of rows sorted by (word, source); equal rows add up."""
    most = len(a[3]) + len(b[3])
    num_bytes = a[1][-1] - a[1][0] + b[1][-1] - b[1][0]
    keys, starts = np.empty(num_bytes, np.uint8), np.zeros(most + 1, np.int64)
    sources, counts = np.empty(most, np.uint16), np.empty(most, np.int64)
    n = _merge_into(a, b, (keys, starts, sources, counts))
    return keys[: starts[n]], starts[: n + 1], sources[:n], counts[:n]


@kernel
def _merge_into(a: Rows, b: Rows, out: Rows) -> int:
    """Fill `out`, whose first offset is 0, with the merged rows; returns how many there are."""
    a_keys, a_starts, a_sources, a_counts = a
    b_keys, b_starts, b_sources, b_counts = b
    keys, starts, sources, counts = out
    i = j = n = 0
    while i < len(a_counts) or j < len(b_counts):
        if i == len(a_counts):
            order = np.int64(1)
        elif j == len(b_counts):
            order = np.int64(-1)
        else:
            order = compare_words(a_keys, a_starts[i], a_starts[i + 1], b_keys, b_starts[j], b_starts[j + 1])
            if order == 0:
                order = np.int64(a_sources[i]) - np.int64(b_sources[j])
        if order <= 0:
            size = a_starts[i + 1] - a_starts[i]
            copy_bytes(a_keys, a_starts[i], keys, starts[n], size)
            sources[n], counts[n] = a_sources[i], a_counts[i]
            i += 1
            if order == 0:
                counts[n] += b_counts[j]
                j += 1
        else:
            size = b_starts[j + 1] - b_starts[j]
            copy_bytes(b_keys, b_starts[j], keys, starts[n], size)
            sources[n], counts[n] = b_sources[j], b_counts[j]
            j += 1
        starts[n + 1] = starts[n] + size
        n += 1
    return n
