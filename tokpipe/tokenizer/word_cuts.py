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
    if i + 2 >= len(keys):  # no whole character follows: not UTF-8, or of two bytes
        return UNCERTAIN
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


@kernel_part
def _add_part(
    keys: NDArray[np.uint8],
    start: int,
    stop: int,
    count: int,
    table: NDArray[np.uint64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    counts: NDArray[np.int64],
    n: int,
) -> int:
    """Add `count` to one part, or enter it as part `n`; returns how many parts there are then."""
    mask, size = uint64(len(table) - 1), stop - start
    h = hash_bytes(keys, start, size, len(keys))
    tag, p = h >> uint64(32), h & mask
    while True:
        entry = table[p]
        if entry == uint64(0):
            table[p] = (tag << uint64(32)) | uint64(n + 1)
            starts[n], stops[n], counts[n] = start, stop, count
            return n + 1
        if entry >> uint64(32) == tag:
            k = np.int64(entry & uint64(0xFFFFFFFF)) - 1
            if stops[k] - starts[k] == size and same_bytes(keys, starts[k], len(keys), keys, start, len(keys), size):
                counts[k] += count
                return n
        p = (p + uint64(1)) & mask


@kernel
def _count_parts(
    keys: NDArray[np.uint8],
    word_starts: NDArray[np.int64],
    word_counts: NDArray[np.int64],
    split_scripts: bool,
    table: NDArray[np.uint64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> int:
    """Cut every word and add up equal parts; returns how many are distinct, or -1 if a word's might not have room.

    The table has twice as many slots as `counts`, and is empty.
    """
    n = 0
    for w in range(len(word_counts)):
        i, end = word_starts[w], word_starts[w + 1]
        if n + end - i > len(counts):
            return -1
        whole = False
        for j in range(i, end):
            whole |= keys[j] == 0x3C
        start, previous = i, -1
        while i < end and not whole:
            script = _script(keys, i)
            cut = previous == DIGIT or script == DIGIT
            if split_scripts and script != UNCERTAIN and previous != UNCERTAIN:
                cut |= script != previous
            if cut and previous >= 0:
                n = _add_part(keys, start, i, word_counts[w], table, starts, stops, counts, n)
                start = i
            previous = script
            byte = keys[i]
            i += 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        n = _add_part(keys, start, end, word_counts[w], table, starts, stops, counts, n)
    return n


def most_frequent_parts(parts: WordParts, limit: int) -> WordParts:
    """At most `limit` parts, those that occur most often; of equals, those that come first. Their order stays."""
    if len(parts.counts) <= limit:
        return parts
    kept = np.sort(np.argsort(-parts.counts, kind="stable")[:limit])
    return WordParts(parts.keys, parts.starts[kept], parts.stops[kept], parts.counts[kept])


def cut_words(words: SelectedWords, *, split_scripts: bool) -> WordParts:
    """Cut words between digits and anything else and, with `split_scripts`, between characters of two scripts.

    Example:
        ` (word,` 2 times and ` word.` 3 times give ` (` 2, `word` 2, `,` 2, ` word` 3, `.` 3.
    """
    # Most parts are in many words, so room for as many as there are words is nearly always enough.
    room = 1 << max(13, len(words.counts).bit_length())
    while True:
        table = np.zeros(2 * room, np.uint64)
        starts, stops, counts = (np.empty(room, np.int64) for _ in range(3))
        n = _count_parts(words.keys, words.starts, words.counts, split_scripts, table, starts, stops, counts)
        if n >= 0:
            return WordParts(words.keys, starts[:n], stops[:n], counts[:n])
        room *= 2
