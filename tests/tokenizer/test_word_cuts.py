"""Cuts between scripts and digits; that they change no piece is what `test_train.py` holds to training on the text."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokpipe.tokenizer.word_cuts import WordParts, cut_words, most_frequent_parts
from tokpipe.tokenizer.word_selection import SelectedWords


def as_words(counts: dict[str, int]) -> SelectedWords:
    data = [word.encode() for word in counts]
    starts = np.concatenate([[0], np.cumsum([len(word) for word in data])]).astype(np.int64)
    keys = np.frombuffer(b"".join(data), np.uint8).copy()
    return SelectedWords(keys, starts, np.array(list(counts.values()), np.int64), 1.0, len(counts))


def as_counts(parts: WordParts) -> dict[str, int]:
    data = parts.keys.tobytes()
    found = [data[a:b].decode() for a, b in zip(parts.starts, parts.stops, strict=True)]
    assert len(set(found)) == len(found)
    return dict(zip(found, parts.counts.tolist(), strict=True))


@pytest.mark.parametrize(
    ("word", "scripts", "digits"),
    [
        (" (word,", [" (", "word", ","], [" (word,"]),
        ("है।", ["है", "।"], ["है।"]),
        (" API-से", [" API", "-", "से"], [" API-से"]),
        (" 20ab", [" ", "2", "0", "ab"], [" ", "2", "0", "ab"]),
        ("“yes”—no", ["“", "yes", "”—", "no"], ["“yes”—no"]),
        ("café.", ["café."], ["café."]),  # é is Latin too, but not certain here, so nothing is cut beside it
        ("a\u0951.", ["a\u0951."], ["a\u0951."]),  # inherits its script
        ("क\u200dष,", ["क\u200dष", ","], ["क\u200dष,"]),
        ("a<b>c", ["a<b>c"], ["a<b>c"]),  # could be a special piece
        ("१२a", ["१२", "a"], ["१२a"]),  # Devanagari digits are letters to the trainer
        ("\u2581x1", ["\u2581x", "1"], ["\u2581x", "1"]),
        ("a_b", ["a", "_", "b"], ["a_b"]),
        ("\0a.", ["\0a", "."], ["\0a."]),
    ],
)
def test_cut_words_cuts_where_no_piece_can_reach(word, scripts, digits):
    assert list(as_counts(cut_words(as_words({word: 3}), split_scripts=True))) == list(dict.fromkeys(scripts))
    assert list(as_counts(cut_words(as_words({word: 3}), split_scripts=False))) == list(dict.fromkeys(digits))


def test_equal_parts_add_up():
    parts = as_counts(cut_words(as_words({" (word,": 2, " word.": 3, "word": 5}), split_scripts=True))
    assert parts == {" (": 2, "word": 7, ",": 2, " word": 3, ".": 3}


def test_the_most_frequent_parts_stay_in_their_order():
    parts = cut_words(as_words({"a.": 2, "b": 5, "c": 2, "d": 1}), split_scripts=True)
    assert as_counts(most_frequent_parts(parts, 5)) == as_counts(parts) == {"a": 2, ".": 2, "b": 5, "c": 2, "d": 1}
    assert list(as_counts(most_frequent_parts(parts, 3)).items()) == [("a", 2), (".", 2), ("b", 5)]


def test_words_of_thousands_of_parts_find_room():
    parts = [
        "".join(letters) for letters in product("abcdefghijklmnopqrst", repeat=3)
    ]  # 8,000, of four bytes with a digit behind
    words = {"1".join(parts[first : first + 1000]) + "1": 2 for first in range(0, len(parts), 1000)}
    assert as_counts(cut_words(as_words(words), split_scripts=True)) == dict.fromkeys(parts, 2) | {"1": 2 * len(parts)}


@settings(deadline=None)
@given(
    st.dictionaries(st.text(st.sampled_from("ab1,<।क😀é \u200d\u2581"), min_size=1), st.integers(1, 9), min_size=1), st.booleans()
)
def test_cut_words_loses_no_character(counts, split_scripts):
    parts = as_counts(cut_words(as_words(counts), split_scripts=split_scripts))
    before, after = Counter[str](), Counter[str]()
    for total, words in ((before, counts), (after, parts)):
        for word, number in words.items():
            for char in word:
                total[char] += number
    assert before == after
