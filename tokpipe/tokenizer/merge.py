"""BPE of one new unit by the model's own pieces, in a kernel, step for step as SentencePiece does it.

Again and again the adjacent pair whose concatenation is a piece of the best score becomes one symbol, the leftmost first among
equals. Symbols are strings, so a character that is no piece still merges; it becomes byte pieces if nothing takes it. Pieces of
type UNUSED merge like others and are split back at the end.

A piece needs one entry in the pair table, not one for each way to split it: wherever a piece arises, the merges inside its
characters were those of the piece encoded alone, and with two symbols left that is one certain pair (docs/design.md).

Source: SentencePiece (arXiv:1808.06226) bpe_model.cc; BPE arXiv:1508.07909.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numba import int64, uint64
from numpy.typing import NDArray

from tokpipe.tokenizer.classes import NUM_CODES
from tokpipe.tokenizer.hashing import HASH_MULTIPLIER, fold_multiply
from tokpipe.tokenizer.jit import kernel, kernel_part
from tokpipe.tokenizer.probe import negative_zero_is_lower, unused_characters_are_unknown
from tokpipe.tokenizer.vocabulary import BYTE, NORMAL, SPACE_MARK, UNUSED, USER_DEFINED, Vocabulary, code_points

MAX_SYMBOLS = 256
"""Units of more characters than this go to SentencePiece: its heap is better there than our scan."""
_MERGEABLE = (NORMAL, UNUSED)
UNKNOWN, ASK_SENTENCEPIECE, FIRST_RULE = -1, -2, -3
"""Values of `char_symbol` below 0; FIRST_RULE - r is rule r."""
NO_RANK = np.int32(2**31 - 1)


class Merges(NamedTuple):
    """A model's pieces, laid out for `merge_unit`; a named tuple because Numba takes it as one argument."""

    char_symbol: NDArray[np.int32]
    """(0x110000,) symbol of a character of raw text, or UNKNOWN, ASK_SENTENCEPIECE, or FIRST_RULE - r."""
    rule_starts: NDArray[np.int64]
    """(num_rules + 1,) into `rule_symbols`."""
    rule_symbols: NDArray[np.int32]
    """The symbols of the rules' images; `-1 - code` for a character without symbol."""
    extra_codes: NDArray[np.int32]
    """Code points of the symbols from vocab_size on: characters that occur in pieces but are no piece themselves."""
    byte_ids: NDArray[np.int32]
    """(256,) ids of the byte pieces."""
    pairs: NDArray[np.uint64]
    """(capacity, 2) `left + 1 << 32 | right + 1` and `rank << 32 | piece`; open addressing, all zero for free."""
    ranks: NDArray[np.int32]
    """(vocab_size,) a piece's place in the order of merging; equal scores, equal ranks."""
    splits: NDArray[np.int32]
    """(vocab_size, 2) the two symbols an UNUSED piece falls back to, or -1."""
    symbols: NDArray[np.int32]
    """(2, MAX_SYMBOLS + 2) scratch: a unit's symbols, and a stack for splitting."""
    pair_scratch: NDArray[np.int32]
    """(2, MAX_SYMBOLS + 2) scratch: rank and piece of each adjacent pair."""


@kernel_part
def _find_pair(pairs: NDArray[np.uint64], left: int, right: int) -> Any:
    """The value of a pair, 0 if it never merges."""
    if left < 0 or right < 0:
        return uint64(0)
    key = uint64(left + 1) << uint64(32) | uint64(right + 1)
    mask = uint64(pairs.shape[0] - 1)
    slot = fold_multiply(key, HASH_MULTIPLIER) & mask
    while pairs[slot, 0] != key:
        if pairs[slot, 0] == uint64(0):
            return uint64(0)
        slot = (slot + uint64(1)) & mask
    return pairs[slot, 1]


@kernel_part
def _rank_pair(merges: Merges, at: int) -> None:
    """Note rank and piece of the pair of symbols `at` and `at + 1`."""
    value = _find_pair(merges.pairs, merges.symbols[0, at], merges.symbols[0, at + 1])
    merges.pair_scratch[0, at] = NO_RANK if value == uint64(0) else int64(value >> uint64(32))
    merges.pair_scratch[1, at] = int64(value & uint64(0xFFFFFFFF))


@kernel
def _merge_symbols(merges: Merges, n: int) -> int:
    """Merge the first `n` scratch symbols until no pair is left; returns how many symbols remain."""
    symbols, ranks, pieces = merges.symbols[0], merges.pair_scratch[0], merges.pair_scratch[1]
    for j in range(n - 1):
        _rank_pair(merges, j)
    while n > 1:
        best, at = NO_RANK, -1
        for j in range(n - 1):
            if ranks[j] < best:
                best, at = ranks[j], j
        if at < 0:
            break
        symbols[at] = pieces[at]
        n -= 1
        for j in range(at + 1, n):
            symbols[j] = symbols[j + 1]
            ranks[j - 1], pieces[j - 1] = ranks[j], pieces[j]
        if at > 0:
            _rank_pair(merges, at - 1)
        if at < n - 1:
            _rank_pair(merges, at)
    return n


@kernel
def _read_symbols(merges: Merges, data: NDArray[np.uint8], start: int, length: int) -> int:
    """Write a unit's characters as scratch symbols; returns their number, or -1 if SentencePiece must encode the unit."""
    symbols = merges.symbols[0]
    i, end, n = start, start + length, 0
    while i < end:
        byte = int64(data[i])
        if byte < 0x80:
            code, step = byte, 1
        elif byte < 0xE0:
            code, step = (byte & 0x1F) << 6 | (int64(data[i + 1]) & 0x3F), 2
        elif byte < 0xF0:
            code, step = (byte & 0x0F) << 12 | (int64(data[i + 1]) & 0x3F) << 6 | (int64(data[i + 2]) & 0x3F), 3
        else:
            code = (byte & 0x07) << 18 | (int64(data[i + 1]) & 0x3F) << 12
            code, step = code | (int64(data[i + 2]) & 0x3F) << 6 | (int64(data[i + 3]) & 0x3F), 4
        i += step
        symbol = int64(merges.char_symbol[code])
        if symbol == ASK_SENTENCEPIECE or n >= MAX_SYMBOLS:
            return -1
        if symbol > FIRST_RULE:
            symbols[n] = symbol if symbol >= 0 else -1 - (0x2581 if code == 0x20 else code)
            n += 1
            continue
        rule = FIRST_RULE - symbol
        first, stop = merges.rule_starts[rule], merges.rule_starts[rule + 1]
        if n + stop - first > MAX_SYMBOLS:
            return -1
        for j in range(first, stop):
            symbols[n] = merges.rule_symbols[j]
            n += 1
    return n


@kernel
def _write_bytes(merges: Merges, code: int, ids: NDArray[np.int32], w: int) -> int:
    """Append the byte pieces of a character; returns the new end of `ids`."""
    byte_ids = merges.byte_ids
    if code < 0x80:
        ids[w] = byte_ids[code]
        return w + 1
    if code < 0x800:
        ids[w] = byte_ids[0xC0 | code >> 6]
        ids[w + 1] = byte_ids[0x80 | code & 0x3F]
        return w + 2
    if code < 0x10000:
        ids[w] = byte_ids[0xE0 | code >> 12]
        w -= 1
    else:
        ids[w] = byte_ids[0xF0 | code >> 18]
        ids[w + 1] = byte_ids[0x80 | code >> 12 & 0x3F]
    ids[w + 2] = byte_ids[0x80 | code >> 6 & 0x3F]
    ids[w + 3] = byte_ids[0x80 | code & 0x3F]
    return w + 4


@kernel
def merge_unit(merges: Merges, data: NDArray[np.uint8], start: int, length: int, ids: NDArray[np.int32]) -> int:
    """Encode one unit into `ids` (room for 4 * MAX_SYMBOLS); returns the number of ids, or -1 if SentencePiece must do it."""
    n = _read_symbols(merges, data, start, length)
    if n < 0:
        return -1
    n = _merge_symbols(merges, n)
    vocab_size, stack, w = merges.ranks.shape[0], merges.symbols[1], 0
    for j in range(n):
        stack[0], depth = merges.symbols[0, j], 1
        while depth:
            depth -= 1
            symbol = int64(stack[depth])
            if symbol < 0:
                w = _write_bytes(merges, -1 - symbol, ids, w)
            elif symbol >= vocab_size:
                w = _write_bytes(merges, int64(merges.extra_codes[symbol - vocab_size]), ids, w)
            elif merges.splits[symbol, 0] >= 0:
                stack[depth], stack[depth + 1] = merges.splits[symbol, 1], merges.splits[symbol, 0]
                depth += 2
            else:
                ids[w] = symbol
                w += 1
    return w


@kernel
def _add_pairs(merges: Merges, spelled: NDArray[np.int32], starts: NDArray[np.int64], pieces: NDArray[np.int64]) -> None:
    """Enter the one pair of every piece; `pieces` by rising length, piece `k` spelled by `spelled[starts[k] : starts[k + 1]]`."""
    mask = uint64(merges.pairs.shape[0] - 1)
    for k in range(pieces.shape[0]):
        n = starts[k + 1] - starts[k]
        for j in range(n):
            merges.symbols[0, j] = spelled[starts[k] + j]
        if _merge_symbols(merges, n) != 2:
            continue
        left, right, piece = merges.symbols[0, 0], merges.symbols[0, 1], pieces[k]
        key = uint64(left + 1) << uint64(32) | uint64(right + 1)
        slot = fold_multiply(key, HASH_MULTIPLIER) & mask
        while merges.pairs[slot, 0] != uint64(0):
            slot = (slot + uint64(1)) & mask
        merges.pairs[slot, 0], merges.pairs[slot, 1] = key, uint64(merges.ranks[piece]) << uint64(32) | uint64(piece)
        if merges.splits[piece, 0] == -2:
            merges.splits[piece, 0], merges.splits[piece, 1] = left, right


def build_merges(vocabulary: Vocabulary, rules: Mapping[str, str]) -> Merges:
    """Lay out the pieces of a model for which `cuts.cut_obstacle` is None."""
    text = {p: i for i, (p, t) in enumerate(zip(vocabulary.pieces, vocabulary.types.tolist(), strict=True)) if t in _MERGEABLE}
    users = [p for p, t in zip(vocabulary.pieces, vocabulary.types.tolist(), strict=True) if t == USER_DEFINED]
    symbol_of = {ord(p): i for p, i in text.items() if len(p) == 1}
    if unused_characters_are_unknown():
        symbol_of = {code: i for code, i in symbol_of.items() if vocabulary.types[i] != UNUSED}
    frozen = {ord(p): vocabulary.pieces.index(p) for p in users if len(p) == 1}
    symbol_of |= frozen
    # A text with a raw space never reaches the pieces, and a user-defined character is never merged.
    never = {" ", *map(chr, frozen)}
    long_pieces = [p for p in text if 1 < len(p) <= MAX_SYMBOLS and never.isdisjoint(p)]
    long_pieces.sort(key=len)
    spelled = code_points("".join(long_pieces))
    extra = sorted(set(np.unique(spelled).tolist()) - symbol_of.keys())
    symbol_of |= {code: len(vocabulary.pieces) + k for k, code in enumerate(extra)}

    literal_symbol = np.full(NUM_CODES, UNKNOWN, np.int32)
    literal_symbol[list(symbol_of)] = list(symbol_of.values())
    char_symbol = literal_symbol.copy()
    char_symbol[0x20] = char_symbol[ord(SPACE_MARK)]
    asked = {p[0] for p in users if len(p) > 1}
    images = [[symbol_of.get(ord(c), -1 - ord(c)) for c in image.replace(" ", SPACE_MARK)] for image in rules.values()]
    for r, (char, image) in enumerate(rules.items()):
        char_symbol[ord(char)] = FIRST_RULE - r if asked.isdisjoint(image.replace(" ", SPACE_MARK)) else ASK_SENTENCEPIECE
    for char in asked | ({" "} if SPACE_MARK in asked else set()):
        char_symbol[ord(char)] = ASK_SENTENCEPIECE

    splits = np.full((len(vocabulary.pieces), 2), -1, np.int32)
    splits[vocabulary.types == UNUSED, 0] = -2
    merges = Merges(
        char_symbol=char_symbol,
        rule_starts=np.cumsum([0, *map(len, images)]).astype(np.int64),
        rule_symbols=np.array([s for image in images for s in image], np.int32),
        extra_codes=np.array(extra, np.int32),
        byte_ids=_byte_ids(vocabulary),
        pairs=np.zeros((1 << (2 * len(long_pieces) + 16).bit_length(), 2), np.uint64),
        ranks=_ranks(vocabulary.scores),
        splits=splits,
        symbols=np.zeros((2, MAX_SYMBOLS + 2), np.int32),
        pair_scratch=np.zeros((2, MAX_SYMBOLS + 2), np.int32),
    )
    starts = np.cumsum([0, *map(len, long_pieces)]).astype(np.int64)
    _add_pairs(merges, literal_symbol[spelled], starts, np.array([text[p] for p in long_pieces], np.int64))
    return merges


def _ranks(scores: NDArray[np.float32]) -> NDArray[np.int32]:
    """Each piece's place in the order of merging, 0 for the best score; equal scores, equal places."""
    order = -scores.astype(np.float64)
    if negative_zero_is_lower():
        order[(scores == 0) & np.signbit(scores)] = np.nextafter(0, 1)
    ranks: NDArray[np.int32] = np.unique(order, return_inverse=True)[1].astype(np.int32)
    return ranks


def _byte_ids(vocabulary: Vocabulary) -> NDArray[np.int32]:
    ids = np.zeros(256, np.int32)
    for i in np.flatnonzero(vocabulary.types == BYTE).tolist():
        ids[int(vocabulary.pieces[i][1:-1], 16)] = i
    return ids
