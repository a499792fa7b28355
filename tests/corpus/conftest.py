"""Ways to write texts in every format, and to read them back whole."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from tokpipe.corpus import (
    BEGINNING,
    CorpusConfig,
    RejectLog,
    batches,
    csv_rows,
    plan_splits,
    read_inventory,
    read_split,
    record_blocks,
    tables,
)

COMPRESS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


class Corpus:
    """A folder of files under test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, data: bytes | str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    def write_texts(self, name: str, texts: list[str]) -> Path:
        """Write texts in the format that the name's extension says."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        plain, _, last = name.rpartition(".")
        if last in COMPRESS:
            path = self.write_texts(plain, texts)
            data = COMPRESS[last](path.read_bytes())
            path.unlink()
            return self.write(name, data)
        if last == "jsonl":
            return self.write(name, "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)))
        if last in ("csv", "tsv"):
            with path.open("w", newline="") as file:
                writer = csv.writer(file, delimiter="," if last == "csv" else "\t")
                writer.writerows([["id", "text"], *([i, t] for i, t in enumerate(texts))])
            return path
        table = pa.table({"id": list(range(len(texts))), "text": pa.array(texts, pa.string())})
        if last == "parquet":
            pq.write_table(table, path, row_group_size=20)
            return path
        if last == "arrow":
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=20)
            return path
        raise ValueError(name)

    def read(self, **settings: object) -> tuple[list[str], RejectLog]:
        """Read everything, split by split."""
        config = CorpusConfig(**{"corpus": str(self.folder), **settings})  # type: ignore[arg-type]
        inventory = read_inventory(config)
        log = RejectLog()
        texts = []
        for split in plan_splits(inventory, split_bytes=config.split_bytes):
            for batch in read_split(split, config, log):
                check_batch(batch)
                texts += batch.texts.to_pylist()
        return texts, log


def check_batch(batch) -> None:
    """Every promise of `TextBatch`."""
    batch.texts.validate(full=True)
    assert batch.texts.type == pa.large_string() and batch.texts.offset == 0 and batch.texts.null_count == 0
    assert len(batch.positions) == len(batch.texts) == batch.path_starts[-1] > 0
    assert len(batch.path_starts) == len(batch.paths) + 1
    assert batch.position_unit in ("byte", "row") and batch.path == batch.paths[0]
    assert batch.num_input_bytes >= 0 and batch.cursor > BEGINNING


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    folder = tmp_path / "raw"
    folder.mkdir()
    return Corpus(folder)


@pytest.fixture
def make_corpus(tmp_path_factory):
    """A fresh folder, for Hypothesis."""
    return lambda: Corpus(tmp_path_factory.mktemp("raw"))


@pytest.fixture
def compress():
    return COMPRESS


@pytest.fixture
def batch_checker():
    return check_batch


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks and batches so small that every file has many."""
    monkeypatch.setattr(batches, "BATCH_BYTES", 700)
    monkeypatch.setattr(tables, "BATCH_BYTES", 700)
    monkeypatch.setattr(csv_rows, "BATCH_BYTES", 1500)
    monkeypatch.setattr(record_blocks, "BLOCK_BYTES", 600)
    monkeypatch.setattr(record_blocks, "_LOOK_PAST_BYTES", 32)
