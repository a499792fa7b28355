"""Parquet, Arrow and CSV: columns, types, damage, and rows that do not fit."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from tokpipe.corpus import CorpusConfig, plan_splits, read_inventory, read_split
from tokpipe.errors import MissingColumnError, UnreadableFileError

TEXTS = [f"text {i} हिन्दी {'य' * 40}" for i in range(54)]


@pytest.mark.parametrize("split_bytes", [1, 100, 1 << 20])
def test_parquet_is_cut_at_row_groups(corpus, split_bytes):
    corpus.write_texts("a.parquet", TEXTS)
    assert corpus.read(split_bytes=split_bytes)[0] == TEXTS
    config = CorpusConfig(corpus=str(corpus.folder))
    splits = plan_splits(read_inventory(config), split_bytes=split_bytes)
    groups = [(part.start, part.stop) for split in splits for part in split.parts]
    assert groups == ([(0, -1)] if split_bytes == 1 << 20 else [(0, 1), (1, 2), (2, 3)])


def test_a_dotted_column_leads_into_structs(corpus):
    corpus.write("j/a.jsonl", '{"body": {"text": "one"}}\n{"body": null}\n{"body": {}}\n{"body": "x"}\n')
    table = pa.table({"body": pa.array([{"text": "two"}, None, {"text": None}], pa.struct([("text", pa.string())]))})
    (corpus.folder / "p").mkdir()
    pq.write_table(table, corpus.folder / "p/a.parquet")
    with pa.OSFile(str(corpus.folder / "p/b.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    got, log = corpus.read(text_column="body.text")
    assert got == ["one", "two", "two"]
    assert log.counts == {"null_text": 5, "missing_text": 1, "not_a_string": 1}


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv.gz", "a.parquet", "a.arrow"])
def test_a_missing_column_names_those_there_are(corpus, name):
    corpus.write_texts(name, ["x"])
    with pytest.raises(MissingColumnError, match=r"'body'.*text"):
        corpus.read(text_column="body")


def test_a_column_that_is_no_text_is_refused(corpus):
    corpus.write_texts("a.parquet", ["x"])
    with pytest.raises(MissingColumnError, match=r"'id' holds int64, not text\. Columns of text: text"):
        corpus.read(text_column="id")


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_every_arrow_type_of_text_is_read(corpus, kind):
    array = pa.array(["a", None, "b", "a"], pa.string()).cast(kind)
    table = pa.table({"text": array})
    with pa.OSFile(str(corpus.folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    got, log = corpus.read()
    assert got == ["a", "b", "a"] and log.counts == {"null_text": 1}


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_invalid_utf8_in_a_table_is_one_located_reject(corpus, name):
    bad = pa.array([b"good", b"\xe0\xa4", b"\xe0\xa4\x95", b"\xff", b"end"], pa.binary()).view(pa.string())
    table = pa.table({"text": bad})
    if name == "a.parquet":
        pq.write_table(table, corpus.folder / name)
    else:
        with pa.OSFile(str(corpus.folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    got, log = corpus.read()
    assert got == ["good", "क", "end"]
    assert [(r.path, r.position, r.reason) for r in log.first] == [(name, 1, "invalid_utf8"), (name, 3, "invalid_utf8")]


def test_csv_rows_with_wrong_fields_are_refused_one_by_one(corpus, small_blocks):
    rows = [f"{i},text {i}" for i in range(400)]
    rows[3], rows[399], rows[200] = "3,a,b", "399", "200,\udcff"
    corpus.write("a.csv", "\n".join(["id,text", *rows, ""]).encode("utf-8", "surrogateescape"))
    got, log = corpus.read()
    assert got == [f"text {i}" for i in range(400) if i not in (3, 200, 399)]
    assert sorted((r.position, r.reason) for r in log.first) == [(3, "bad_row"), (200, "invalid_utf8"), (399, "bad_row")]
    config = CorpusConfig(corpus=str(corpus.folder))
    (split,) = plan_splits(read_inventory(config), split_bytes=1 << 30)
    for batch in read_split(split, config, log):
        assert batch.texts.to_pylist() == [f"text {row}" for row in batch.positions]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_a_large_csv_is_read_whole_or_is_an_error(corpus, suffix):
    # Random digits, so that the compressed file is large too.
    rng = random.Random(0)
    texts = [f"{rng.getrandbits(800):x}" for _ in range(2000)]
    path = corpus.write_texts("a.csv" + suffix, texts)
    assert corpus.read()[0] == texts
    if suffix:
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(UnreadableFileError, match=r"a\.csv.*truncated or damaged at byte"):
            corpus.read()


def test_a_csv_record_longer_than_a_block_is_an_error_that_names_the_file(corpus, small_blocks):
    corpus.write_texts("a.csv", ["x" * 5000])
    with pytest.raises(UnreadableFileError, match=r"a\.csv: cannot be read as CSV"):
        corpus.read()


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_truncated_table_is_an_error_that_names_the_file(corpus, name):
    path = corpus.write_texts(name, TEXTS)
    whole = path.read_bytes()
    for keep in (len(whole) - 1, len(whole) - 8, len(whole) - 100, 20, 3):
        path.write_bytes(whole[:keep])
        with pytest.raises(UnreadableFileError, match=name):
            corpus.read()


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_csv_of_a_header_alone_holds_nothing(corpus, end):
    corpus.write("a.csv", f'id,"text"{end}')
    got, log = corpus.read()
    assert not got and log.num_records == 0
    with pytest.raises(MissingColumnError, match="the header is"):
        corpus.read(text_column="body")
