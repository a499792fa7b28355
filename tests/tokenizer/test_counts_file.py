"""The file itself: what is not one is refused, and a crash leaves nothing."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokpipe.errors import TrainingError
from tokpipe.tokenizer.counts_file import (
    METADATA_KEY,
    CountsBlock,
    CountsInfo,
    CountsWriter,
    SourceTotals,
    iter_counts,
    read_counts_info,
)

INFO = CountsInfo(totals={"a": SourceTotals(documents=2, text_bytes=9, words=3)}, max_word_bytes=100)


def block(words: list[str]) -> CountsBlock:
    data = [word.encode() for word in words]
    starts = np.concatenate([[0], np.cumsum([len(word) for word in data])]).astype(np.int64)
    counts = np.arange(1, len(words) + 1)
    return CountsBlock(np.frombuffer(b"".join(data), np.uint8), starts, np.zeros(len(words), np.uint16), counts)


def test_written_rows_and_metadata_come_back(tmp_path):
    with CountsWriter(tmp_path / "x.counts", INFO) as writer:
        writer.write(block(["a", "b"]))
        writer.write(block(["c"]))
    info = read_counts_info(tmp_path / "x.counts")
    assert info.totals == INFO.totals and info.max_word_bytes == 100 and info.num_rows == 3
    (found,) = iter_counts(tmp_path / "x.counts")
    assert found.words().to_pylist() == ["a", "b", "c"] and found.counts.tolist() == [1, 2, 1]
    assert len(found.slice(1, 3)) == 2 and found.slice(1, 3).words().to_pylist() == ["b", "c"]


def test_any_parquet_reader_can_open_it(tmp_path):
    with CountsWriter(tmp_path / "x.counts", INFO) as writer:
        writer.write(block(["a", "b"]))
    table = pq.read_table(tmp_path / "x.counts")
    assert table.to_pydict() == {"word": ["a", "b"], "source": [0, 0], "count": [1, 2]}


@pytest.mark.parametrize(
    ("group", "num_rows", "edges"),
    [
        (4, 11, [3, 4, 9, 10]),  # groups that end inside, at and after what arrives
        (65_536, 70_000, [1, 1_000, 33_333]),  # pages inside a group, which Arrow would end where a chunk does
    ],
)
def test_how_rows_arrive_changes_no_byte(tmp_path, monkeypatch, group, num_rows, edges):
    monkeypatch.setattr("tokpipe.tokenizer.counts_file.ROWS_PER_GROUP", group)
    # Long words that share no beginning, so that a large group takes several pages.
    whole = block([f"{i % 10}{i:05d}" + "x" * 50 for i in range(num_rows)])
    for name, cuts in (("one", []), ("many", edges)):
        with CountsWriter(tmp_path / name, INFO) as writer:
            for start, stop in pairwise([0, *cuts, num_rows]):
                writer.write(whole.slice(start, stop))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()
    assert pq.ParquetFile(tmp_path / "one").metadata.num_row_groups == -(-num_rows // group)


def test_an_error_leaves_no_file(tmp_path):
    with pytest.raises(RuntimeError, match="stop"), CountsWriter(tmp_path / "x.counts", INFO) as writer:
        writer.write(block(["a"]))
        raise RuntimeError("stop")
    assert not list(tmp_path.iterdir())


def test_what_is_no_counts_file_is_refused_by_name(tmp_path):
    (tmp_path / "text").write_text("hello")
    pq.write_table(pa.table({"word": ["a"]}), tmp_path / "other.parquet")
    metadata = {METADATA_KEY: b'{"version": 99}'}
    pq.write_table(pa.table({"word": ["a"]}).replace_schema_metadata(metadata), tmp_path / "newer.counts")
    cases = (("none", "not a word counts"), ("text", "not a word counts"), ("other.parquet", "but not a"), ("newer.counts", "99"))
    for name, message in cases:
        with pytest.raises(TrainingError, match=message) as caught:
            read_counts_info(tmp_path / name)
        assert name in str(caught.value)
