"""Numba kernels for counting words: cut text as SentencePiece's trainer does, and count in a table.

A word is ` *[^ \\n]+| +$`: the spaces before it belong to it, and spaces that end a line are a word of their own. U+2581 counts
as a space, because the trainer sees spaces as U+2581. A tab ends a word and is dropped: the trainer's table cannot carry one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from tokpipe.tokenizer.hashing import copy_bytes, hash_bytes, load64, same_bytes, trailing_zeros
from tokpipe.tokenizer.jit import kernel, kernel_part

SPACE, NEWLINE, TAB = 0x20, 0x0A, 0x09
OTHER, LATIN, DEVANAGARI = 0, 1, 2

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
                    copy_bytes(data, start, keys, num_bytes, length)
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
