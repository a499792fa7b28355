"""A lock belongs to a process and goes with it."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

from tokpipe.build.lock import hold_lock, is_held
from tokpipe.errors import OutputLockedError

HOLDER = """
import sys
from pathlib import Path
from tokpipe.build.lock import hold_lock
with hold_lock(Path(sys.argv[1]), "data"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    path = tmp_path / "build" / "lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process, path
    process.kill()
    process.communicate()


def test_a_second_holder_is_told_who_the_first_is(holder):
    process, path = holder
    assert is_held(path)
    message = rf"data is in use by process {process.pid} on "
    with pytest.raises(OutputLockedError, match=message), hold_lock(path, "data"):
        pass


def test_the_lock_dies_with_its_process(holder):
    process, path = holder
    process.kill()
    process.wait()
    assert not is_held(path)
    with hold_lock(path, "data"):
        assert path.read_text().startswith("process ")


def test_a_lock_is_let_go_at_the_end_of_the_block(tmp_path):
    for _ in range(2):
        with hold_lock(tmp_path / "lock", "data"):
            pass


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(*unused):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("tokpipe.build.lock.fcntl.flock", refuse)
    with pytest.raises(OutputLockedError, match="cannot lock files"), hold_lock(tmp_path / "lock", "data"):
        pass
    assert is_held(tmp_path / "lock"), "what cannot be told counts as held, so that nothing alive is removed"


def test_other_errors_of_the_lock_pass(tmp_path, monkeypatch):
    def fail(*unused):
        raise OSError(errno.EIO, "disk")

    monkeypatch.setattr("tokpipe.build.lock.fcntl.flock", fail)
    with pytest.raises(OSError, match="disk"), hold_lock(tmp_path / "lock", "data"):
        pass
