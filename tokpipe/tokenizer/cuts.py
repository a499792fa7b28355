"""Safe cuts: between which characters no piece of a vocabulary can reach, so that the text on both sides encodes alone.

The proof is in docs/design.md. The matrix is derived from the vocabulary when a model is loaded; a model that the proof does not
cover is named by `cut_obstacle` and takes the plain path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokpipe.tokenizer.classes import (
    CLASS_NAMES,
    DEVANAGARI,
    INSIDE,
    LETTER,
    MIXED,
    NUM_CLASSES,
    SPACE,
    class_tables,
    literal_classes,
    text_classes,
)
from tokpipe.tokenizer.vocabulary import NORMAL, SPACE_MARK, UNUSED, USER_DEFINED, Vocabulary, code_points

MAX_PIECES = 1 << 21
"""The table of units packs three ids into one word."""


class Cuts(NamedTuple):
    """The tables that find cuts; a named tuple because Numba takes it as one argument."""

    rows: NDArray[np.uint8]
    """(65536,) see `class_tables`."""
    columns: NDArray[np.uint8]
    """(num_rows * 256,) see `class_tables`."""
    safe: NDArray[np.uint8]
    """(256,) 1 at `16 * a + b` if a character of class b after one of class a starts a new unit."""


def is_text_piece(piece_type: int) -> bool:
    """Whether a piece of this type can come from text; control, unknown and byte pieces cannot."""
    return piece_type in (NORMAL, USER_DEFINED, UNUSED)


def cut_obstacle(vocabulary: Vocabulary, rules: Mapping[str, str] | None) -> str | None:
    """Why a model cannot be cut (in words, for the log), or None if it can.

    `rules` are from `one_character_rules`.
    """
    if vocabulary.model_type != "bpe":
        return f"a {vocabulary.model_type} model, not BPE"
    if len(vocabulary.pieces) > MAX_PIECES:
        return f"more than {MAX_PIECES:,} pieces"
    if not vocabulary.byte_fallback:
        return "no byte fallback: neighbouring unknown characters fuse into one id"
    if not vocabulary.escape_whitespaces:
        return "spaces are not escaped"
    if vocabulary.remove_extra_whitespaces:
        return "extra spaces are removed, which depends on the text around"
    if rules is None:
        return "the normaliser has rules of several characters or with empty images"
    return _rules_obstacle(vocabulary, rules) or _pieces_obstacle(vocabulary)


def _rules_obstacle(vocabulary: Vocabulary, rules: Mapping[str, str]) -> str | None:
    if " " in rules or SPACE_MARK in rules:
        return "the normaliser replaces spaces"
    for piece, piece_type in zip(vocabulary.pieces, vocabulary.types.tolist(), strict=True):
        if piece_type == USER_DEFINED and not rules.keys().isdisjoint(piece):
            return f"the user-defined symbol {piece!r} holds a character that the normaliser would replace elsewhere"
        if piece_type == UNUSED and piece in rules:
            return f"the unused piece {piece!r} is a character that the normaliser replaces"
    return None


def _pieces_obstacle(vocabulary: Vocabulary) -> str | None:
    """Special pieces that could come out of text, scores that have no order, and vocabularies without a cut around words."""
    types = vocabulary.types.tolist()
    text = {p for p, t in zip(vocabulary.pieces, types, strict=True) if is_text_piece(t)}
    for piece, piece_type in zip(vocabulary.pieces, types, strict=True):
        if not is_text_piece(piece_type) and (len(piece) == 1 or piece in text):
            return f"the special piece {piece!r} can also be spelled by text"
        if is_text_piece(piece_type) and "\0" in piece:
            return f"the piece {piece!r} holds the null character, which SentencePiece treats apart"
    if np.isnan(vocabulary.scores).any():
        return "scores that are not numbers"
    safe = safe_matrix(vocabulary)
    if not any(safe[a, b] for script in (LETTER, DEVANAGARI) for a, b in ((script, SPACE), (SPACE, script))):
        return "its pieces join words across spaces, so there is no place to cut"
    return None


def safe_matrix(vocabulary: Vocabulary) -> NDArray[np.bool_]:
    """(16, 16) bool: True where no piece holds a character of class a directly before one of class b.

    Example: with the one piece `▁the`, (space, letter) and (letter, letter) are False and (letter, space) stays True.
    """
    text = zip(vocabulary.pieces, vocabulary.types.tolist(), strict=True)
    # One array of all pieces: a zero character, which no piece here holds (`_pieces_obstacle`), ends each.
    codes = code_points("\0".join(piece for piece, piece_type in text if is_text_piece(piece_type)))
    classes = literal_classes()[codes]
    together = (codes[:-1] != 0) & (codes[1:] != 0)
    safe = np.ones((NUM_CLASSES, NUM_CLASSES), np.bool_)
    safe[classes[:-1][together], classes[1:][together]] = False
    for blind in (MIXED, INSIDE):
        safe[blind, :] = safe[:, blind] = False
    return safe


def derive_cuts(vocabulary: Vocabulary, rules: Mapping[str, str]) -> Cuts:
    """The cut tables of a model for which `cut_obstacle` is None."""
    rows, columns = class_tables(text_classes(rules))
    return Cuts(rows, columns, safe_matrix(vocabulary).reshape(-1).astype(np.uint8))


def describe_cuts(vocabulary: Vocabulary) -> str:
    """The pairs of classes that stay together, for people: `letter+letter space+letter`."""
    safe = safe_matrix(vocabulary)
    names = range(len(CLASS_NAMES))
    return " ".join(f"{CLASS_NAMES[a]}+{CLASS_NAMES[b]}".replace(" ", "-") for a in names for b in names if not safe[a, b])
