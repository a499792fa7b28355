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


def write_dataset(
    folder: Path, shards: list[tuple[str, bool, list[int]]], *, dtype: str = "uint16"
) -> dict[tuple[str, bool], object]:
    """A dataset of counting ids: `shards` are (source, held out, lengths of the documents); returns each source's ids, joined."""
    import numpy as np

    from tokpipe.shards import Manifest, ShardEntry, ShardWriter, TokenizerEntry, dataset_id, write_manifest

    entries, joined = [], {}
    for number, (source, held_out, lengths) in enumerate(shards):
        before = joined.get((source, held_out), np.zeros(0, dtype=dtype))
        ids = (4 + (len(before) + np.arange(sum(lengths)) + 1000 * len(source)) % 60_000).astype(dtype)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ids[offsets[1:] - 1] = 2
        name = f"shards/{source}-{'held-out-' if held_out else ''}{number:05d}-000"
        with ShardWriter(folder / name, dtype=dtype) as writer:
            writer.append(ids, offsets)
            info = writer.commit()
        values = [getattr(info, key) for key in ("num_tokens", "num_documents", "bin_bytes", "idx_bytes", "bin_xxh3", "idx_xxh3")]
        entries.append(ShardEntry(name, source, held_out, *values))
        joined[source, held_out] = np.concatenate([before, ids])
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer" / "tokenizer.model").write_bytes(b"not used here")
    tokenizer = TokenizerEntry(fingerprint="f" * 16, vocab_size=65_000 if dtype == "uint16" else 100_000, eos_id=2)
    write_manifest(
        folder,
        Manifest(
            dataset_id=dataset_id(tokenizer.fingerprint, entries),
            tool_version="0",
            created="2026-01-01T00:00:00+00:00",
            tokenizer=tokenizer,
            dtype=dtype,
            sources=tuple(dict.fromkeys(source for source, _, _ in shards)),
            shards=tuple(entries),
        ),
    )
    return joined


@pytest.fixture(scope="session")
def dataset_writer():
    """`write_dataset`, for tests that may not import from conftest."""
    return write_dataset
