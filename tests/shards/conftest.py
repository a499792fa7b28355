"""A small dataset on disk that keeps every promise, for tests that then break one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tokpipe.shards import Manifest, ShardEntry, ShardWriter, TokenizerEntry, dataset_id, write_manifest

EOS = 2
FINGERPRINT = "0123456789abcdef"


def random_documents(rng: np.random.Generator, *, count: int, vocab_size: int = 300, longest: int = 40) -> list[np.ndarray]:
    """Documents of ordinary ids, each ending in `</s>`."""
    return [np.append(rng.integers(4, vocab_size, rng.integers(0, longest)), EOS) for _ in range(count)]


def join(documents: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Documents as one batch: ids and offsets."""
    lengths = [len(document) for document in documents]
    ids = np.concatenate(documents) if documents else np.empty(0, np.int64)
    return ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


@pytest.fixture
def documents() -> Callable[..., list[np.ndarray]]:
    """`random_documents`."""
    return random_documents


@pytest.fixture
def batch() -> Callable[[list[np.ndarray]], tuple[np.ndarray, np.ndarray]]:
    """`join`."""
    return join


@pytest.fixture
def write_shard(tmp_path: Path) -> Callable[..., Path]:
    """Write documents as a shard and return its prefix."""

    def write(documents: list[np.ndarray], *, name: str = "shards/hi-00000-000", dtype: str = "uint16") -> Path:
        with ShardWriter(tmp_path / name, dtype=dtype) as writer:
            writer.append(*join(documents))
            assert writer.commit() is not None
        return tmp_path / name

    return write


def entry_of(folder: Path, name: str, documents: list[np.ndarray], *, source: str, held_out: bool = False) -> ShardEntry:
    """Write one shard of a dataset and return its row for the manifest."""
    with ShardWriter(folder / name, dtype="uint16") as writer:
        writer.append(*join(documents))
        info = writer.commit()
    assert info is not None
    return ShardEntry(name=name, source=source, held_out=held_out, **asdict(info))


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., tuple[Path, Manifest]]:
    """Write a dataset of three training shards and a held-out one; returns its folder and manifest."""

    def make(*, prepend_bos: bool = False, documents: list[list[np.ndarray]] | None = None) -> tuple[Path, Manifest]:
        folder = tmp_path / "data"
        rng = np.random.default_rng(7)
        parts = documents or [random_documents(rng, count=50) for _ in range(4)]
        kinds = [("hi", False), ("hi", False), ("en", False), ("hi", True)]
        entries = tuple(
            entry_of(folder, f"shards/{source}-{number:05}-000", part, source=source, held_out=held_out)
            for number, (part, (source, held_out)) in enumerate(zip(parts, kinds, strict=False))
        )
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / "tokenizer.model").write_bytes(b"a model")
        (folder / "tokenizer" / "card.json").write_text(f'{{"fingerprint": "{FINGERPRINT}"}}')
        manifest = Manifest(
            dataset_id=dataset_id(FINGERPRINT, entries),
            tool_version="0.1.0",
            created="2026-01-01T00:00:00Z",
            tokenizer=TokenizerEntry(fingerprint=FINGERPRINT, vocab_size=300, eos_id=EOS, bos_id=1, prepend_bos=prepend_bos),
            dtype="uint16",
            sources=("hi", "en"),
            shards=entries,
            settings={"b": 1, "a": {"d": 2, "c": "क"}},
            rejects={"bad-json": 3},
            skipped={"blank": 4},
        )
        write_manifest(folder, manifest)
        return folder, manifest

    return make
