"""A small tokenizer, trained once for all tests of the room."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tokpipe.tokenizer import TrainConfig, WordCounter, train_tokenizer


@pytest.fixture(scope="session")
def small_counts(tmp_path_factory, text_maker_session) -> Path:
    """Word counts of about 1 MB of made-up Hindi and English, as sources `hi` and `en`."""
    from tokpipe.tokenizer import merge_counts

    folder = tmp_path_factory.mktemp("counts")
    for language in ("en", "hi"):
        with WordCounter(language) as counter:
            counter.add(pa.array(text_maker_session(language), pa.large_string()))
            counter.write(folder / f"{language}.counts")
    merge_counts([folder / "en.counts", folder / "hi.counts"], folder / "all.counts")
    return folder / "all.counts"


@pytest.fixture(scope="session")
def text_maker_session():
    """Deterministic documents of one language: words of 1 to 4 syllables, so that there is something to merge."""

    def make(language: str, num_documents: int = 400, seed: int = 0) -> list[str]:
        rng = random.Random(f"{language}-{seed}")
        syllables = {
            "en": "ba con de er fi ing ka le mo ness on pre ra st tion un wor y z".split(),
            "hi": "क का कि की प्र मा नी रा स्त हि या वा लो ज़ फ़ ढ़ ता ने में था है ङ".split(),
        }[language]
        vocabulary = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(2000)]
        marks = [" ", " ", " ", " ", "  ", ", ", ". ", "\n", " (", ") ", " 2024 ", "। ", "\t", " 😀 ", "-"]
        documents = []
        for _ in range(num_documents):
            words = rng.choices(vocabulary, weights=[1 / (i + 1) for i in range(2000)], k=rng.randint(1, 250))
            documents.append("".join(word + rng.choice(marks) for word in words))
        return documents

    return make


@pytest.fixture(scope="session")
def small_model(tmp_path_factory, small_counts) -> Path:
    """A folder with a tokenizer of 1,500 pieces trained on `small_counts` with the defaults."""
    folder = tmp_path_factory.mktemp("model")
    train_tokenizer(small_counts, TrainConfig(vocab_size=1500), folder)
    return folder
