"""Receipts round-trip, belong to one plan, and add up."""

from __future__ import annotations

import pytest

from tokpipe.build.receipts import (
    Receipt,
    add_receipts,
    finished_tasks,
    piece_name,
    read_pieces,
    read_receipt,
    read_stage,
    receipt_name,
)
from tokpipe.build.store import LocalStore
from tokpipe.errors import BuildError
from tokpipe.shards import ShardEntry

SHARD = ShardEntry("shards/hi-00003-000", "hi", False, 10, 2, 20, 82, "0" * 32, "1" * 32)
RECEIPT = Receipt(
    plan="abc",
    stage="tokenize",
    task=3,
    files=("rejects/00003-000.jsonl",),
    shards=(SHARD,),
    num_records=5,
    num_documents=2,
    num_tokens=10,
    text_bytes=100,
    input_bytes=120,
    blank=1,
    rejects={"bad_json": 2, "empty": 1},
    places=("हि.jsonl, 7: bad_json", "a, 8: bad_json"),
    checked_bytes=40,
    cursor=(0, 55),
    facts={"table_bytes": 3},
)


@pytest.fixture
def store(tmp_path) -> LocalStore:
    return LocalStore(tmp_path)


def test_bytes_round_trip():
    data = RECEIPT.to_bytes()
    assert Receipt.from_bytes(data, "here") == RECEIPT
    assert Receipt.from_bytes(data, "here").to_bytes() == data


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"shards": [], "files": [], "places": [], "cursor": [], "who": 1}', b"\xff"]
)
def test_damaged_receipts_are_refused(data):
    with pytest.raises(BuildError, match="here: is no receipt"):
        Receipt.from_bytes(data, "here")


def test_a_receipt_of_another_plan_is_refused(store):
    store.put_receipt(receipt_name("tokenize", 3), RECEIPT.to_bytes())
    assert read_receipt(store, receipt_name("tokenize", 3), "abc") == RECEIPT
    with pytest.raises(BuildError, match="belongs to plan abc, expected xyz"):
        read_receipt(store, receipt_name("tokenize", 3), "xyz")


def test_finished_tasks_ignores_pieces(store):
    for task in (0, 3, 12):
        store.write(receipt_name("tokenize", task), RECEIPT.to_bytes())
    store.write(piece_name("tokenize", 4, 0), RECEIPT.to_bytes())
    assert finished_tasks(store, "tokenize") == {0, 3, 12}
    assert finished_tasks(store, "count") == set()


def test_read_pieces_stops_at_the_first_gap(store):
    for piece in (0, 1, 3):
        store.write(piece_name("tokenize", 4, piece), RECEIPT.to_bytes())
    assert read_pieces(store, "tokenize", 4, "abc") == [RECEIPT, RECEIPT]
    assert read_pieces(store, "tokenize", 5, "abc") == []


def test_read_stage_wants_every_task(store):
    store.write(receipt_name("tokenize", 0), RECEIPT.to_bytes())
    assert len(read_stage(store, "tokenize", 1, "abc")) == 1
    with pytest.raises(FileNotFoundError):
        read_stage(store, "tokenize", 2, "abc")


def test_add_receipts_sums_and_keeps_order():
    other = Receipt(plan="abc", stage="tokenize", task=3, num_records=1, rejects={"empty": 4, "bad_row": 1}, places=("b",) * 9)
    total = add_receipts([RECEIPT, other], plan="abc", stage="tokenize", task=3)
    assert total.num_records == 6 and total.num_tokens == 10 and total.checked_bytes == 40
    assert total.rejects == {"bad_json": 2, "bad_row": 1, "empty": 5}
    assert total.shards == (SHARD,) and len(total.places) == 5
    assert total.cursor == () and total.facts == {}
