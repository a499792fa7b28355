from __future__ import annotations

import json

import pytest

from tokpipe.corpus import RejectLog


def test_reject_log_writes_each_record_and_counts_by_reason(tmp_path):
    path = tmp_path / "rejects.jsonl"
    with RejectLog(path) as log:
        log.add("hi/a.jsonl", 12, "bad_json", "क \udcff")
        log.add("hi/a.jsonl", 30, "empty")
        log.flush()
        assert len(path.read_text().splitlines()) == 2
        for position in range(10):
            log.add("b.parquet", position, "null_text")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records[0] == {"path": "hi/a.jsonl", "position": 12, "reason": "bad_json", "detail": "क \udcff"}
    assert len(records) == 12
    assert log.counts == {"bad_json": 1, "empty": 1, "null_text": 10} and log.num_rejects == 11
    assert len(log.first) == 5 and log.first[0].position == 12
    log.close()


def test_reject_log_makes_no_empty_file_and_replaces_an_old_one(tmp_path):
    path = tmp_path / "rejects.jsonl"
    path.write_text("old")
    RejectLog(path).close()
    assert not path.exists()


def test_reject_log_refuses_an_unknown_reason():
    with pytest.raises(ValueError, match="unknown reject reason 'odd'; the codes are bad_json"):
        RejectLog().add("a", 0, "odd")
