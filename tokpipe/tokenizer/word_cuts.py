"""Cut the words once more, where no piece of the trainer can reach: the same pieces from far fewer rows.

SentencePiece's trainer refuses pieces that hold a digit and anything else (`split_digits`), or characters of two scripts
(`split_by_unicode_script`). A pair that it refuses is never counted, so a word may be cut between the two and its parts counted
by themselves: `(word,` and `word.` become `(`, `word`, `,` and `.`. Of real text 40 % of the rows are left, and train in that
much of the time. Only characters whose script is certain are cut between. Words with `<` stay whole, because the trainer looks
for its own special pieces (`</s>`, `<0x0A>`) in them first.

Source: SentencePiece trainer_interface.cc, IsValidSentencePiece and LoadSentences; Unicode Scripts.txt.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from tokpipe.tokenizer.hashing import hash_bytes, same_bytes
from tokpipe.tokenizer.jit import kernel, kernel_part
from tokpipe.tokenizer.word_selection import SelectedWords

UNCERTAIN, LATIN, DEVANAGARI, COMMON, DIGIT = 0, 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class WordParts:
    """Distinct parts of words: `keys[starts[p] : stops[p]]` occurs `counts[p]` times. In the order of their first occurrence."""

    keys: NDArray[np.uint8]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    counts: NDArray[np.int64]


@kernel_part
def _script(keys: NDArray[np.uint8], i: int) -> int:
    """The script of the character at `i`, by its first bytes; UNCERTAIN where that takes a table, or for a space."""
    byte = keys[i]
    if byte < 0x80:
        if 0x30 <= byte <= 0x39:
            return DIGIT
        lower = byte | 0x20
        if 0x61 <= lower <= 0x7A:
            return LATIN
        return COMMON if 0x20 < byte < 0x7F else UNCERTAIN
    if byte == 0xE0 and keys[i + 1] == 0xA4:  # U+0900-093F
        return DEVANAGARI
    if byte == 0xE0 and keys[i + 1] == 0xA5:  # U+0940-097F, of which 0951-0954 are inherited and both dandas common
        last = keys[i + 2]
        if last == 0xA4 or last == 0xA5:
            return COMMON
        return UNCERTAIN if 0x91 <= last <= 0x94 or last == 0xB0 else DEVANAGARI
    if byte == 0xE2 and keys[i + 1] == 0x80 and 0x90 <= keys[i + 2] <= 0xA7:  # U+2010-2027: dashes, quotes, bullets, ellipsis
        return COMMON
    return UNCERTAIN


@kernel
def _find_parts(
    keys: NDArray[np.uint8],
    starts: NDArray[np.int64],
    split_scripts: bool,
    part_starts: NDArray[np.int64],
    first: NDArray[np.int64],
) -> None:
    """Where each part begins, into `part_starts`, and how many begin before each word, into `first`: (num_words + 1,)."""
    n = 0
    first[0] = 0
    for w in range(len(starts) - 1):
        i, end = starts[w], starts[w + 1]
        part_starts[n] = i
        n += 1
        whole = False
        for j in range(i, end):
            whole |= keys[j] == 0x3C
        previous = -1
        while i < end and not whole:
            script = _script(keys, i)
            cut = previous == DIGIT or script == DIGIT
            if split_scripts and script != UNCERTAIN and previous != UNCERTAIN:
                cut |= script != previous
            if cut and previous >= 0:
                part_starts[n] = i
                n += 1
            previous = script
            byte = keys[i]
            i += 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        first[w + 1] = n


@kernel
def _count_parts(
    keys: NDArray[np.uint8],
    word_starts: NDArray[np.int64],
    word_counts: NDArray[np.int64],
    first: NDArray[np.int64],
    part_starts: NDArray[np.int64],
    table: NDArray[np.uint64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> int:
    """Add up equal parts, into starts, stops and counts; returns how many are distinct. `table`: zeros, two or more a part."""
    mask, end_of_keys = uint64(len(table) - 1), len(keys)
    n = 0
    for w in range(len(word_counts)):
        for part in range(first[w], first[w + 1]):
            start = part_starts[part]
            stop = part_starts[part + 1] if part + 1 < first[w + 1] else word_starts[w + 1]
            h = hash_bytes(keys, start, stop - start, end_of_keys)
            tag, p = h >> uint64(32), h & mask
            while True:
                entry = table[p]
                if entry == uint64(0):
                    table[p] = (tag << uint64(32)) | uint64(n + 1)
                    starts[n], stops[n], counts[n] = start, stop, word_counts[w]
                    n += 1
                    break
                k, size = np.int64(entry & uint64(0xFFFFFFFF)) - 1, stop - start
                same = entry >> uint64(32) == tag and stops[k] - starts[k] == size
                if same and same_bytes(keys, starts[k], end_of_keys, keys, start, end_of_keys, size):
                    counts[k] += word_counts[w]
                    break
                p = (p + uint64(1)) & mask
    return n


def cut_words(words: SelectedWords, *, split_scripts: bool) -> WordParts:
    """Cut words between digits and anything else and, with `split_scripts`, between characters of two scripts.

    Example:
        ` (word,` 2 times and ` word.` 3 times give ` (` 2, `word` 2, `,` 2, ` word` 3, `.` 3.
    """
    part_starts = np.empty(len(words.keys) + 1, np.int64)  # only as many pages as there are parts are ever touched
    first = np.empty(len(words.starts), np.int64)
    _find_parts(words.keys, words.starts, split_scripts, part_starts, first)
    num_parts = int(first[-1])
    table = np.zeros(1 << max(4, (2 * num_parts).bit_length()), np.uint64)
    starts, stops, counts = (np.empty(num_parts, np.int64) for _ in range(3))
    n = _count_parts(words.keys, words.starts, words.counts, first, part_starts, table, starts, stops, counts)
    return WordParts(words.keys, starts[:n].copy(), stops[:n].copy(), counts[:n].copy())
