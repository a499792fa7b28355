"""Numba kernels for counting words: cut text as SentencePiece's trainer does, count in a table, sort it, merge sorted runs.

A word is ` *[^ \\n]+| +$`: the spaces before it belong to it, and spaces that end a line are a word of their own. U+2581 counts
as a space, because the trainer sees spaces as U+2581. A tab ends a word and is dropped: the trainer's table cannot carry one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from tokpipe.tokenizer.hashing import hash_bytes, load64, load_part, same_bytes, trailing_zeros
from tokpipe.tokenizer.jit import kernel, kernel_part

SPACE, NEWLINE, TAB = 0x20, 0x0A, 0x09
OTHER, LATIN, DEVANAGARI = 0, 1, 2
# Groups of at most this many words are sorted by comparing them; larger ones by the next eight bytes.
FEW_WORDS = 4

# Slots of the `state` array of `count_words`.
NUM_WORDS, NUM_KEY_BYTES, TABS, LONG_WORDS, LONG_BYTES, RESERVED_WORDS, RESERVED_BYTES, DOCUMENT, POSITION = range(9)
NUM_STATE = 9


@kernel_part
def _space_bytes(data: NDArray[np.uint8], i: int, end: int) -> int:
    """How many bytes the space at `i` takes: 1 for U+0020, 3 for U+2581 (E2 96 81), 0 if there is none."""
    byte = data[i]
    if byte == SPACE:
        return 1
    if byte == 0xE2 and i + 2 < end and data[i + 1] == 0x96 and data[i + 2] == 0x81:
        return 3
    return 0


@kernel_part
def _next_mark(data: NDArray[np.uint8], i: int, end: int, stop: int) -> Any:
    """The first place from `i` on, or `end`, with a byte that may end a word or be reserved: up to U+0020, or E2.

    Eight bytes at a time: of the bytes that borrow when the mark is taken from them, the lowest is certain.
    """
    while i + 8 <= stop:
        word = load64(data, i)
        other = word ^ uint64(0xE2E2E2E2E2E2E2E2)
        marks = ((word - uint64(0x2121212121212121)) & ~word) | ((other - uint64(0x0101010101010101)) & ~other)
        marks &= uint64(0x8080808080808080)
        if marks != uint64(0):
            return min(end, i + (trailing_zeros(marks) >> 3))
        i += 8
        if i >= end:
            return end
    return i


@kernel
def count_words(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    table: NDArray[np.uint64],
    keys: NDArray[np.uint8],
    key_start: NDArray[np.int64],
    counts: NDArray[np.int64],
    state: NDArray[np.int64],
    max_word_bytes: int,
) -> bool:
    """Count the words of documents `data[starts[d] : starts[d + 1]]` from where `state` says; True when all are done.

    It stops early, at a word's first byte, when the table is half full or its keys might not take one word more: the caller
    grows or empties them and calls again. Entries are tag (high 32 bits of the hash) and word number + 1; keys are compared in
    full.
    """
    mask = uint64(len(table) - 1)
    max_words = min(len(counts), len(table) >> 1)
    n, num_bytes, stop = state[NUM_WORDS], state[NUM_KEY_BYTES], len(data)
    i = state[POSITION]
    for d in range(state[DOCUMENT], len(starts) - 1):
        end = starts[d + 1]
        i = max(i, starts[d])
        while i < end:
            if data[i] == NEWLINE:
                i += 1
                continue
            if data[i] == TAB:
                state[TABS] += 1
                i += 1
                continue
            if n == max_words or num_bytes + max_word_bytes > len(keys):
                state[NUM_WORDS], state[NUM_KEY_BYTES], state[DOCUMENT], state[POSITION] = n, num_bytes, d, i
                return False
            start = i
            while i < end:
                step = _space_bytes(data, i, end)
                if step == 0:
                    break
                i += step
            reserved = False
            while i < end:
                i = _next_mark(data, i, end, stop)
                if i == end:
                    break
                byte = data[i]
                if byte in (SPACE, NEWLINE, TAB):
                    break
                if byte == 0xE2 and i + 2 < end and data[i + 1] == 0x96:
                    if data[i + 2] == 0x81:
                        break
                    reserved |= data[i + 2] == 0x85  # U+2585 is how the trainer writes an unknown character
                i += 1
            length = i - start
            if reserved:
                state[RESERVED_WORDS] += 1
                state[RESERVED_BYTES] += length
                continue
            if length > max_word_bytes:
                state[LONG_WORDS] += 1
                state[LONG_BYTES] += length
                continue
            h = hash_bytes(data, start, length, stop)
            tag = h >> uint64(32)
            p = h & mask
            while True:
                entry = table[p]
                if entry == uint64(0):
                    table[p] = (tag << uint64(32)) | uint64(n + 1)
                    for q in range(length):
                        keys[num_bytes + q] = data[start + q]
                    num_bytes += length
                    counts[n] = 1
                    n += 1
                    key_start[n] = num_bytes
                    break
                if entry >> uint64(32) == tag:
                    k = np.int64(entry & uint64(0xFFFFFFFF)) - 1
                    o = key_start[k]
                    if key_start[k + 1] - o == length and same_bytes(keys, o, len(keys), data, start, stop, length):
                        counts[k] += 1
                        break
                p = (p + uint64(1)) & mask
    state[NUM_WORDS], state[NUM_KEY_BYTES], state[DOCUMENT], state[POSITION] = n, num_bytes, 0, 0
    return True


@kernel
def fill_table(keys: NDArray[np.uint8], key_start: NDArray[np.int64], num_words: int, table: NDArray[np.uint64]) -> None:
    """Enter the first words of `keys` into an empty table."""
    mask = uint64(len(table) - 1)
    for k in range(num_words):
        h = hash_bytes(keys, key_start[k], key_start[k + 1] - key_start[k], len(keys))
        p = h & mask
        while table[p] != uint64(0):
            p = (p + uint64(1)) & mask
        table[p] = ((h >> uint64(32)) << uint64(32)) | uint64(k + 1)


def word_scripts(keys: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The script of each word: DEVANAGARI if it holds U+0900-097F, else LATIN if it holds a Latin letter, else OTHER."""
    out = np.empty(len(starts) - 1, np.uint8)
    _fill_scripts(keys, starts, out)
    return out


@kernel
def _fill_scripts(keys: NDArray[np.uint8], starts: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    for w in range(len(out)):
        i, end = starts[w], starts[w + 1]
        out[w] = OTHER
        while i < end:
            byte = keys[i]
            if byte < 0x80:
                lower = byte | 0x20
                if 0x61 <= lower <= 0x7A:
                    out[w] = LATIN
            elif byte == 0xE0 and i + 1 < end and (keys[i + 1] == 0xA4 or keys[i + 1] == 0xA5):
                out[w] = DEVANAGARI
                break
            elif 0xC3 <= byte <= 0xC9 or (byte == 0xE1 and i + 1 < end and 0xB8 <= keys[i + 1] <= 0xBB):
                out[w] = LATIN  # U+00C0-027F (with the two signs × and ÷) and U+1E00-1EFF
            i += 1


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
        start, to = starts[order[j]], out_starts[j]
        for i in range(out_starts[j + 1] - to):
            out[to + i] = keys[start + i]


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


def merge_rows(
    a_keys: NDArray[np.uint8],
    a_starts: NDArray[np.int64],
    a_sources: NDArray[np.uint16],
    a_counts: NDArray[np.int64],
    b_keys: NDArray[np.uint8],
    b_starts: NDArray[np.int64],
    b_sources: NDArray[np.uint16],
    b_counts: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint16], NDArray[np.int64]]:
    """Merge two blocks of rows sorted by (word, source); equal rows add up."""
    n, m = len(a_counts), len(b_counts)
    keys = np.empty(a_starts[n] - a_starts[0] + b_starts[m] - b_starts[0], np.uint8)
    starts, sources, counts = np.zeros(n + m + 1, np.int64), np.empty(n + m, np.uint16), np.empty(n + m, np.int64)
    rows = (a_keys, a_starts, a_sources, a_counts, b_keys, b_starts, b_sources, b_counts)
    w = _merge_into(*rows, keys, starts, sources, counts)
    return keys[: starts[w]], starts[: w + 1], sources[:w], counts[:w]


@kernel
def _merge_into(
    a_keys: NDArray[np.uint8],
    a_starts: NDArray[np.int64],
    a_sources: NDArray[np.uint16],
    a_counts: NDArray[np.int64],
    b_keys: NDArray[np.uint8],
    b_starts: NDArray[np.int64],
    b_sources: NDArray[np.uint16],
    b_counts: NDArray[np.int64],
    keys: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sources: NDArray[np.uint16],
    counts: NDArray[np.int64],
) -> int:
    """Fill the last four with the merged rows; returns how many there are."""
    n, m = len(a_counts), len(b_counts)
    i = j = w = 0
    while i < n or j < m:
        if i == n:
            order = np.int64(1)
        elif j == m:
            order = np.int64(-1)
        else:
            order = compare_words(a_keys, a_starts[i], a_starts[i + 1], b_keys, b_starts[j], b_starts[j + 1])
            if order == 0:
                order = np.int64(a_sources[i]) - np.int64(b_sources[j])
        to = starts[w]
        if order <= 0:
            start, size = a_starts[i], a_starts[i + 1] - a_starts[i]
            for k in range(size):
                keys[to + k] = a_keys[start + k]
            sources[w], counts[w] = a_sources[i], a_counts[i]
            i += 1
            if order == 0:
                counts[w] += b_counts[j]
                j += 1
        else:
            start, size = b_starts[j], b_starts[j + 1] - b_starts[j]
            for k in range(size):
                keys[to + k] = b_keys[start + k]
            sources[w], counts[w] = b_sources[j], b_counts[j]
            j += 1
        starts[w + 1] = to + size
        w += 1
    return w
