"""How many refused records are too many."""

from __future__ import annotations

import pytest

from tokpipe.build.receipts import Receipt
from tokpipe.build.rejects import PieceRejects, check_all, num_counted, places
from tokpipe.errors import TooManyRejectsError


def receipt(records: int, **rejects: int) -> Receipt:
    return Receipt(plan="p", stage="tokenize", task=0, num_records=records, rejects=rejects, places=("a, 1: bad_json",))


def test_empty_records_do_not_count():
    assert num_counted({"empty": 5, "bad_json": 2}.items()) == 2
    check_all([receipt(100, empty=50)], 0.0)


def test_exactly_the_limit_is_allowed():
    check_all([receipt(1000, bad_json=1)], 0.001)
    with pytest.raises(TooManyRejectsError, match=r"2 of 1,000 records(.|\n)*a, 1: bad_json(.|\n)*--max-rejects, e.g. 0.0022"):
        check_all([receipt(600, bad_json=1), receipt(400, bad_json=1)], 0.001)


def test_no_records_are_no_rejects():
    check_all([], 0.001)


def test_piece_rejects_start_over_in_another_file(tmp_path):
    log = PieceRejects()
    log.next_piece(tmp_path / "0.jsonl")
    log.add("a.jsonl", 7, "bad_json", "what")
    log.num_records, log.blank = 5, 2
    assert places(log) == ("a.jsonl, 7: bad_json what",)
    log.next_piece(tmp_path / "1.jsonl")
    assert (log.num_records, log.blank, log.first) == (0, 0, []) and not log.counts
    log.add("a.jsonl", 9, "null_text")
    log.close()
    assert [len((tmp_path / name).read_text().splitlines()) for name in ("0.jsonl", "1.jsonl")] == [1, 1]
