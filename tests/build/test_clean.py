"""Clean removes what nothing names and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokpipe.build import build, clean, open_store
from tokpipe.build.receipts import piece_name, receipt_name
from tokpipe.build.store import ATTEMPTS
from tokpipe.build.tokenize_task import TOKENIZE
from tokpipe.errors import BuildError, OutputLockedError
from tokpipe.shards import verify_dataset


@pytest.fixture
def finished(given, inline):
    build(given, engine=inline)
    return given.out


LEFTOVERS = (
    "shards/hi-00003-009.bin",
    "shards/hi-00003-009.idx",
    "rejects/00099-000.jsonl",
    "build/counts/count-00077",
    piece_name(TOKENIZE, 0, 4),
    f"{receipt_name(TOKENIZE, 0)}.123-0a1b2c3d.part",
    "build/plan.json.123-0a1b2c3d.part",
    "dataset.json.123-0a1b2c3d.part",
)


def leave(out: str) -> list[str]:
    """Put leftovers there; returns their names."""
    store = open_store(out)
    for name in LEFTOVERS:
        store.write(name, store.read(receipt_name(TOKENIZE, 0)))
    store.write(LEFTOVERS[5], b"half a rec")
    store.write("mine.part", b"not the build's")
    (Path(out) / ATTEMPTS / "tokenize-00000.0a0a0a0a" / "shards").mkdir(parents=True)
    return sorted([*LEFTOVERS, f"{ATTEMPTS}/tokenize-00000.0a0a0a0a"])


def test_a_finished_dataset_has_nothing_to_clean(finished):
    assert clean(finished) == []


def test_leftovers_go_and_the_rest_stays(finished, files_of):
    before = files_of(finished)
    expected = leave(finished)
    assert clean(finished, dry_run=True) == expected
    assert all((Path(finished) / name).exists() for name in expected), "a dry run removes nothing"
    assert clean(finished) == expected
    assert files_of(finished) == before
    verify_dataset(finished)
    assert clean(finished) == []


def test_pieces_of_an_unfinished_task_stay(finished):
    store = open_store(finished)
    receipt = store.read(receipt_name(TOKENIZE, 0))
    store.remove(receipt_name(TOKENIZE, 0))
    store.remove("dataset.json")
    store.write(piece_name(TOKENIZE, 0, 0), receipt)
    assert clean(finished) == []
    store.remove(piece_name(TOKENIZE, 0, 0))
    assert any(name.startswith("shards/en-00000-000") for name in clean(finished))


def test_clean_keeps_out_of_running_builds(finished):
    with open_store(finished).lock(), pytest.raises(OutputLockedError):
        clean(finished)


def test_clean_wants_a_build(tmp_path):
    with pytest.raises(BuildError, match="is no build"):
        clean(str(tmp_path))
