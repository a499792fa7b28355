"""Character classes: what a cut looks at, and two tables that give a character's class from its bytes without a branch.

A class is a set of characters that vocabularies treat alike. Finer classes leave more cuts safe, coarser ones fewer; none can
make a cut wrong, because `cuts.py` asks the vocabulary itself which classes may meet inside a piece.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tokpipe.tokenizer.vocabulary import SPACE_MARK

LETTER, DIGIT, SPACE, CONTROL, PUNCTUATION = 0, 1, 2, 3, 4
"""ASCII; SPACE holds U+2581 too, which SentencePiece cannot tell from a space."""
DEVANAGARI, DANDA, JOINER, LATIN, GENERAL_PUNCTUATION, OTHER = 5, 6, 7, 8, 9, 10
NEWLINE, CLOSER = 11, 12
"""CLOSER: the ASCII marks that end phrases, which some vocabularies join to the word before them."""
MIXED = 14
"""Characters the tables cannot class more finely: no cut beside them is ever safe."""
INSIDE = 15
"""Not a class: a byte inside a character, or no character before."""
NUM_CLASSES = 16
CLASS_NAMES = (
    "letter", "digit", "space", "control", "punctuation", "Devanagari", "danda", "joiner", "Latin", "general punctuation",
    "other", "newline", "closer",
)  # fmt: skip

NUM_CODES = 0x110000
_BLOCK = 64
_MAX_ROWS = 250


def literal_classes() -> NDArray[np.uint8]:
    """The class of every code point, (0x110000,) uint8."""
    classes = np.full(NUM_CODES, OTHER, np.uint8)
    classes[:0x80] = PUNCTUATION
    classes[:0x20] = classes[0x7F] = CONTROL
    classes[0x0A] = NEWLINE
    for mark in ".,;:!?)]}":
        classes[ord(mark)] = CLOSER
    classes[ord("0") : ord("9") + 1] = DIGIT
    classes[ord("A") : ord("Z") + 1] = classes[ord("a") : ord("z") + 1] = LETTER
    classes[0xC0:0x250] = LATIN
    classes[0x900:0x980] = DEVANAGARI
    classes[0x964:0x966] = DANDA
    classes[0x2000:0x2070] = GENERAL_PUNCTUATION
    classes[0x200C:0x200E] = JOINER
    classes[0x20] = classes[ord(SPACE_MARK)] = SPACE
    return classes


def text_classes(rules: Mapping[str, str]) -> NDArray[np.uint8]:
    """The class of every code point of raw text: a character that the normaliser replaces takes the class of its image."""
    literal = literal_classes()
    classes = literal.copy()
    for char, image in rules.items():
        first, *others = {int(literal[ord(c)]) for c in image}
        classes[ord(char)] = MIXED if others else first
    return classes


def class_tables(classes: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Compile classes into two lookups for any position `i` of UTF-8 text.

    `row = rows[data[i] << 8 | data[i + 1]]` and `cls = columns[row << 8 | data[i + 2]]`, where `cls` is INSIDE if byte `i` is
    not the first of a character. The two following bytes may be anything (the end of the text, say) where the character is
    shorter. Four-byte characters are classed in blocks of 4,096; a block of several classes is MIXED.

    Returns rows (65,536,) uint8 and columns (num_rows * 256,) uint8.
    """
    columns = [np.full(256, cls, np.uint8) for cls in range(NUM_CLASSES)]
    rows = np.full((256, 256), MIXED, np.uint8)
    rows[:0x80] = classes[:0x80, None]
    rows[0x80:0xC0] = INSIDE
    for lead in range(0xC2, 0xE0):
        rows[lead, 0x80:0xC0] = classes[(lead & 0x1F) << 6 :][:_BLOCK]
    for lead in range(0xE0, 0xF0):
        for second in range(0x80, 0xC0):
            block = classes[(lead & 0x0F) << 12 | (second & 0x3F) << 6 :][:_BLOCK]
            if (block == block[0]).all():
                rows[lead, second] = block[0]
            elif len(columns) < _MAX_ROWS:
                rows[lead, second] = len(columns)
                columns.append(np.full(256, MIXED, np.uint8))
                columns[-1][0x80:0xC0] = block
    for lead in range(0xF0, 0xF5):
        for second in range(0x80, 0xC0):
            block = classes[(lead & 0x07) << 18 | (second & 0x3F) << 12 :][: _BLOCK * _BLOCK]
            if len(block) and (block == block[0]).all():
                rows[lead, second] = block[0]
    return rows.reshape(-1), np.concatenate(columns)
