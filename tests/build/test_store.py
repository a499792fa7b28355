"""A store shows whole files or none; attempts leave nothing behind, and dead ones are found."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys

import pytest

from tokpipe.build.object_store import ObjectStore
from tokpipe.build.store import ATTEMPTS, LocalStore, open_store
from tokpipe.errors import BuildError


@pytest.fixture
def store(tmp_path) -> LocalStore:
    return LocalStore(tmp_path / "data")


def test_small_files_round_trip(store):
    store.write("build/a.json", b"one")
    store.write("build/a.json", b"two")
    assert store.read("build/a.json") == b"two"
    assert store.exists("build/a.json") and not store.exists("build/b.json")
    with pytest.raises(FileNotFoundError):
        store.read("build/b.json")


def test_put_receipt_keeps_the_first(store):
    assert store.put_receipt("r.json", b"first") == b"first"
    assert store.put_receipt("r.json", b"second") == b"first"


def test_names_are_sorted_and_relative(store):
    for name in ("shards/b.bin", "shards/a/c.bin", "shards/a.idx"):
        store.write(name, b"")
    assert store.names("shards") == ["shards/a.idx", "shards/a/c.bin", "shards/b.bin"]
    assert store.names("rejects") == []


def test_remove_of_what_is_gone_is_fine(store):
    store.write("x", b"")
    store.remove("x")
    store.remove("x")
    assert not store.exists("x")


def test_publish_shows_files_under_their_names_and_leaves_no_scratch(store):
    with store.attempt("tokenize-00003") as attempt:
        attempt.path("shards/hi-00003-000.bin").write_bytes(b"b")
        attempt.path("shards/hi-00003-000.idx").write_bytes(b"i")
        attempt.path("shards/unfinished").write_bytes(b"u")
        assert not store.names("shards")
        assert attempt.publish("shards/hi-00003-000", (".bin", ".idx")) == "shards/hi-00003-000"
    assert store.names("shards") == ["shards/hi-00003-000.bin", "shards/hi-00003-000.idx"]
    assert store.names(ATTEMPTS) == []


def test_a_failing_attempt_leaves_nothing(store):
    with pytest.raises(ValueError, match="oops"), store.attempt("count-00000") as attempt:
        attempt.path("build/counts/x").write_bytes(b"")
        raise ValueError("oops")
    assert store.names(ATTEMPTS) == [] and store.names("build/counts") == []


DIES = """
import os, signal, sys
from tokpipe.build.store import LocalStore
with LocalStore(sys.argv[1]).attempt(sys.argv[2]) as attempt:
    attempt.path("shards/x.bin").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def die_in_attempt(store: LocalStore, label: str) -> None:
    subprocess.run([sys.executable, "-c", DIES, store.out, label], check=False)


def test_the_next_attempt_at_a_task_removes_dead_ones_and_no_others(store):
    die_in_attempt(store, "tokenize-00001")
    die_in_attempt(store, "tokenize-00002")
    assert len(store.dead_attempts()) == 4
    with store.attempt("tokenize-00002"), store.attempt("tokenize-00002"):
        assert [name for name in store.dead_attempts() if "00002" in name] == []
        assert len(store.dead_attempts("tokenize-00002")) == 0
    assert len(store.dead_attempts()) == 2
    store.remove_dead_attempts()
    assert store.names(ATTEMPTS) == []


def test_an_attempt_that_is_only_just_beginning_is_not_taken_for_a_dead_one(store, monkeypatch):
    real, looks = fcntl.flock, []

    def look_first(file, operation):
        if not looks:
            looks.append(file)
            LocalStore(store.out).remove_dead_attempts()  # another attempt at the task, between opening the lock and holding it
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", look_first)
    with store.attempt("tokenize-00001") as attempt:
        assert looks and store.dead_attempts() == []
        store.remove_dead_attempts()
        attempt.path("x").write_bytes(b"")
    assert store.names(ATTEMPTS) == []


def test_a_scratch_folder_without_a_lock_is_dead(store):
    (store.root / ATTEMPTS / "count-00000.01234567").mkdir(parents=True)
    assert store.dead_attempts() == [f"{ATTEMPTS}/count-00000.01234567"]
    store.remove_dead_attempts("count-00000")
    assert store.dead_attempts() == []


def test_free_bytes_of_a_folder_that_is_not_there_yet(tmp_path):
    free = LocalStore(tmp_path / "not" / "there").free_bytes()
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)


def test_open_store_tells_folders_from_urls(tmp_path):
    assert isinstance(open_store(str(tmp_path / "new")), LocalStore)
    assert open_store(f"file://{tmp_path}/new").out == f"{tmp_path}/new"
    assert isinstance(open_store("memory://somewhere/data"), ObjectStore)
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match="is a file, expected a folder"):
        open_store(str(tmp_path / "file"))
