"""The kernels against plain Python; counting itself is held against a regular expression in test_counts."""

from __future__ import annotations

import pyarrow as pa

from tokpipe.tokenizer import word_kernels as kernels
from tokpipe.tokenizer.hashing import column_bytes


def test_word_scripts_prefers_devanagari_then_latin():
    words = ["नमस्ते", "the", "12", " (", "API-से", "।", "é", "Ḁ", "中文", "Привет", "😀", "aक", "🙂a", "ə"]
    data, starts = column_bytes(pa.array(words, pa.large_string()))
    names = {0: "other", 1: "latin", 2: "devanagari"}
    found = [names[number] for number in kernels.word_scripts(data, starts)]
    assert found == [
        *("devanagari", "latin", "other", "other", "devanagari", "devanagari", "latin", "latin"),
        *("other", "other", "other", "devanagari", "latin", "latin"),
    ]
