"""Splits on disk, and a million files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tokpipe.corpus import CorpusConfig, Inventory, Splits, plan_splits, read_inventory, read_row_groups
from tokpipe.corpus.inventory import SCHEMA
from tokpipe.errors import CorpusError, UnreadableFileError


def make_inventory(num_files: int) -> Inventory:
    """A synthetic inventory of small text files in four folders."""
    rng = np.random.default_rng(0)
    source = np.sort(rng.integers(0, 4, num_files))
    columns = [
        pa.array([f"s{s}/{i:07d}.txt" for i, s in enumerate(source.tolist())], pa.large_string()),
        pa.DictionaryArray.from_arrays(pa.array(source, pa.int32()), pa.array(["s0", "s1", "s2", "s3"])),
        pa.array(rng.integers(100, 2000, num_files)),
        pa.array(["1700000000000000000"] * num_files, pa.large_string()),
        pa.array(["text"] * num_files).dictionary_encode(),
        pa.array([""] * num_files).dictionary_encode(),
    ]
    return Inventory("/raw", pa.table(columns, schema=SCHEMA), pa.array([], pa.large_string()))


def test_a_million_tiny_files_plan_into_few_splits(tmp_path):
    inventory = make_inventory(1_000_000)
    assert inventory.table.nbytes < 100e6
    splits = plan_splits(inventory, split_bytes=64 << 20)
    assert 16 <= len(splits) <= 20
    assert sum(splits.num_bytes.tolist()) == inventory.num_bytes
    assert max(splits.num_bytes.tolist()) <= 64 << 20
    splits.write(tmp_path / "splits.arrow")
    before = pa.total_allocated_bytes()
    mapped = Splits.read(tmp_path / "splits.arrow")
    assert pa.total_allocated_bytes() - before < 1e6
    last = mapped[len(mapped) - 1]
    assert last == splits[len(splits) - 1] and last.source == "s3" and last.parts[-1].path.endswith("0999999.txt")
    assert len(inventory.fingerprint()) == 32


def test_splits_survive_writing(corpus, tmp_path):
    corpus.write_texts("hi/a.jsonl", ["x" * 50] * 20)
    corpus.write_texts("en/a.parquet", ["x" * 50] * 20)
    corpus.write("en/b.txt", "x")
    inventory = read_inventory(CorpusConfig(corpus=str(corpus.folder), split_bytes=300))
    splits = plan_splits(inventory, split_bytes=300)
    splits.write(tmp_path / "a")
    plan_splits(inventory, split_bytes=300).write(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again = Splits.read(tmp_path / "a")
    assert list(again) == list(splits) and again.root == str(corpus.folder)
    assert [split.index for split in again] == list(range(len(again)))
    assert again.sources == [split.source for split in again]
    assert again.num_bytes.tolist() == [split.num_bytes for split in again]
    with pytest.raises(IndexError):
        again[len(again)]


def test_a_corpus_of_empty_files_has_no_splits(corpus, tmp_path):
    corpus.write("a.txt", "")
    splits = plan_splits(read_inventory(CorpusConfig(corpus=str(corpus.folder))), split_bytes=10)
    splits.write(tmp_path / "x")
    assert len(splits) == len(Splits.read(tmp_path / "x")) == 0


def test_splits_read_refuses_other_files(tmp_path):
    (tmp_path / "x").write_bytes(b"no plan")
    with pytest.raises(CorpusError, match="not a plan"):
        Splits.read(tmp_path / "x")


def test_read_row_groups_reads_large_footers_alone(corpus):
    corpus.write_texts("a.parquet", [f"{i}" + "x" * 1000 for i in range(50)])
    corpus.write_texts("b.parquet", ["y"])
    corpus.write_texts("c.jsonl", ["z" * 5000])
    inventory = read_inventory(CorpusConfig(corpus=str(corpus.folder)))
    groups = read_row_groups(inventory, split_bytes=2500)
    assert list(groups) == [0] and len(groups[0]) == 3
    (corpus.folder / "a.parquet").write_bytes(b"PAR1" + bytes(4000))
    with pytest.raises(UnreadableFileError, match=r"a\.parquet: cannot be read as Parquet"):
        read_row_groups(inventory, split_bytes=2500)
