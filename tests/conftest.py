"""What several rooms' tests share: where the real texts lie, and a generator of small Hindi-English texts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[1].parent / "shared"


@pytest.fixture(scope="session")
def shared_corpus() -> Path:
    """The folder of real text, or a skip that says so."""
    if not (SHARED / "corpus").is_dir():
        pytest.skip(f"needs the real corpus at {SHARED / 'corpus'}")
    return SHARED / "corpus"


@pytest.fixture(scope="session")
def shared_messy() -> Path:
    """The folder of awkward files, or a skip that says so."""
    if not (SHARED / "messy").is_dir():
        pytest.skip(f"needs the awkward files at {SHARED / 'messy'}")
    return SHARED / "messy"


ENGLISH = tuple(
    "the of and to in is that for it as was with be by on not he this are or his from at which but have an they you were".split()
)
HINDI = tuple("है के में की को और से का पर यह कि नहीं एक हैं कर भी लिए गया जो हो था तो इस वह ने अपने ज़िंदगी पढ़ाई विद्यालय स्वतंत्रता".split())


def make_text(rng: random.Random, *, language: str = "mix", num_words: int = 60) -> str:
    """A short text of common words with numbers, punctuation, newlines and rare characters strewn in."""
    words = {"en": ENGLISH, "hi": HINDI, "mix": ENGLISH + HINDI}[language]
    out = []
    for _ in range(num_words):
        pick = rng.random()
        if pick < 0.85:
            out.append(rng.choice(words))
        elif pick < 0.92:
            out.append(str(rng.randrange(10_000)))
        else:
            out.append(rng.choice(["(see", "note)", "—", "।", "\n", "₹500", "क्\u200dष", "😀", "a\u200cb", "\t", "x  y"]))
    return " ".join(out)


@pytest.fixture
def text_maker():
    """`make_text`, for tests that may not import from conftest."""
    return make_text
