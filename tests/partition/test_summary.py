from __future__ import annotations

import json

import pytest

from tokpipe.errors import PartitionError
from tokpipe.partition import plan_partition, write_partition


@pytest.fixture
def folder(tmp_path, dataset_writer):
    dataset_writer(tmp_path, [("en", False, [100, 101]), ("hi", False, [300]), ("en", False, [200]), ("hi", True, [90])])
    return tmp_path


def test_partition_json_holds_every_rank_s_bytes_once(folder):
    summary = write_partition(folder, dp=3, seq_len=4, global_batch_size=12, weights={"en": 0.5, "hi": 0.5})
    record = json.loads((folder / "partition.json").read_text())
    assert record == json.loads(json.dumps(summary.as_dict()))
    assert [source["samples_per_step"] for source in record["sources"]] == [6, 6]
    # en: 401 tokens, 100 samples, 16 a lane; hi: 300 tokens, 74 samples, 12 a lane.
    assert [source["steps_per_epoch"] for source in record["sources"]] == [16, 12]
    assert [source["tail_samples_left_out"] for source in record["sources"]] == [4, 2]
    for name, lane_length in (("en", 16), ("hi", 12)):
        shares = [share for rank in record["ranks"] for share in rank["shares"] if share["source"] == name]
        assert [share["samples"] for share in shares] == [[i * 2 * lane_length, (i + 1) * 2 * lane_length] for i in range(3)]
        num_bytes = sum(b - a for share in shares for a, b in (file["bytes"] for file in share["files"]))
        # Every token of every sample, and at each border between ranks one token is read by both.
        assert num_bytes == 2 * (6 * lane_length * 4 + 3)
    first = record["ranks"][0]["shares"][0]
    assert first["files"] == [{"file": "shards/en-00000-000.bin", "bytes": [0, 2 * (32 * 4 + 1)]}]
    assert all(rank["samples_per_step"] == 4 for rank in record["ranks"])


def test_text_names_ranks_files_mixture_and_tail(folder):
    text = plan_partition(folder, dp=3, seq_len=4, global_batch_size=12, weights={"en": 0.5, "hi": 0.5}).text()
    assert "12 samples of 4 tokens a step (48 tokens) over 3 data-parallel ranks" in text
    assert "en: 6 samples a step (50.00%), 16 steps an epoch, 96 samples an epoch, tail of 4 samples left out" in text
    assert (
        "rank 1: 2 lanes of en, 32 samples, 258 bytes (shards/en-00000-000.bin from byte 256 to shards/en-00002-000.bin" in text
    )


def test_without_weights_ranks_read_the_concatenation_source_by_source(folder):
    summary = plan_partition(folder, dp=2, seq_len=4, global_batch_size=4)
    names = [summary.space.shards[piece.shard].name for shares in summary.shares for piece in shares[0].pieces]
    assert names == ["shards/en-00000-000", "shards/en-00002-000", "shards/en-00002-000", "shards/hi-00001-000"]
    assert summary.text([1]).count("rank ") == 1
    with pytest.raises(PartitionError, match=r"rank must be in \[0, 2\), got 2"):
        summary.text([2])


FITS = [
    # 701 tokens: 175 samples of 4
    ({"dp": 4, "seq_len": 4, "global_batch_size": 2048}, (4, 172, 4)),  # a multiple of the ranks
    ({"dp": 64, "seq_len": 32, "global_batch_size": 2048}, (16, 16, 32)),  # 21 samples: fewer ranks
    ({"dp": 64, "seq_len": 2048, "global_batch_size": 2048}, (1, 1, 512)),  # not one sample: a shorter one
    ({"dp": 2, "seq_len": 4, "global_batch_size": 64}, (2, 64, 4)),  # as asked
    ({"dp": 2, "seq_len": 16, "global_batch_size": 64, "weights": {"en": 0.5, "hi": 0.5}}, (2, 36, 16)),  # 18 samples of hi
]


@pytest.mark.parametrize(("asked", "expected"), FITS)
def test_corpus_too_small_gets_the_largest_that_works_and_a_notice(folder, asked, expected):
    summary = write_partition(folder, **asked)
    found = (summary.dp_world_size, summary.phase.global_batch_size, summary.phase.seq_len)
    assert found == expected
    as_asked = found == (asked["dp"], asked["global_batch_size"], asked["seq_len"])
    assert as_asked != bool(summary.notices)
    if not as_asked:
        assert f"{expected[1]}, seq_len {expected[2]}" in summary.notices[0]
        assert summary.text().startswith("Notice: ")
        with pytest.raises(PartitionError):
            write_partition(folder, exact=True, **asked)


def test_nothing_to_lay_out_is_an_error(tmp_path, dataset_writer):
    dataset_writer(tmp_path, [("en", False, [1])])
    with pytest.raises(PartitionError, match="1 training tokens are too few"):
        write_partition(tmp_path, dp=1, seq_len=8, global_batch_size=1)
