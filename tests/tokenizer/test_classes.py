"""The two lookups give every character the class that the code point has."""

from __future__ import annotations

import numpy as np
import pytest

from tokpipe.tokenizer.classes import (
    CLASS_NAMES,
    DEVANAGARI,
    INSIDE,
    LETTER,
    MIXED,
    NUM_CLASSES,
    OTHER,
    SPACE,
    class_tables,
    literal_classes,
    text_classes,
)


def looked_up(rows, columns, text: str, follow: bytes) -> list[int]:
    data = text.encode() + follow
    found = [columns[int(rows[data[i] << 8 | data[i + 1]]) << 8 | data[i + 2]] for i in range(len(text.encode()))]
    starts = [i for i, byte in enumerate(text.encode()) if byte & 0xC0 != 0x80]
    assert all(found[i] == INSIDE for i in range(len(found)) if i not in starts)
    return [int(found[i]) for i in starts]


@pytest.mark.parametrize("follow", [b"\x00\x00", b"\xff\xff", b"\xe0\xa4"])
def test_tables_give_every_character_its_class_whatever_follows(follow):
    classes = literal_classes()
    rows, columns = class_tables(classes)
    codes = [*range(0xD800), *range(0xE000, 0x11000), 0x1F600, 0x10FFFF]
    for start in range(0, len(codes), 5000):
        part = codes[start : start + 5000]
        assert looked_up(rows, columns, "".join(map(chr, part)), follow) == classes[part].tolist()


def test_character_with_a_rule_takes_the_class_of_its_image():
    classes = text_classes({"é": "e", "₹": "रु", "½": "1 2", "😀": "a"})
    assert [int(classes[ord(c)]) for c in "é₹½"] == [LETTER, DEVANAGARI, MIXED]
    rows, columns = class_tables(classes)
    # Its block of 4,096 characters now holds two classes, and four-byte characters are not looked at more closely.
    assert looked_up(rows, columns, "😀🙁", b"\x00\x00") == [MIXED, MIXED]
    assert looked_up(rows, columns, "\U00010000", b"\x00\x00") == [OTHER]


def test_too_many_mixed_blocks_are_mixed_not_wrong():
    alternating = np.tile(np.array([LETTER, OTHER], np.uint8), 0x110000 // 2)
    rows, columns = class_tables(alternating)
    found = np.array([looked_up(rows, columns, chr(c), b"\x00\x00")[0] for c in range(0x800, 0xD000, 7)])
    expected = alternating[np.arange(0x800, 0xD000, 7)]
    assert set(found[found != expected]) == {MIXED} and len(columns) <= 256 * 256


def test_space_mark_is_a_space_and_names_are_complete():
    classes = literal_classes()
    assert classes[ord(" ")] == classes[0x2581] == SPACE
    assert classes.max() < len(CLASS_NAMES) < MIXED < NUM_CLASSES
