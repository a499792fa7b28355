"""Small files: whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokpipe.shards import SIDE_SUFFIX, side_path, write_durably


def test_write_replaces_and_makes_folders(tmp_path):
    path = tmp_path / "a" / "b.json"
    write_durably(path, b"one")
    write_durably(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_rename_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "b.json"
    write_durably(path, b"old")

    def fail(self, target):
        raise OSError("no rename today")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no rename today"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_side_names_are_never_shared(tmp_path):
    names = {side_path(tmp_path / "x.bin").name for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("x.bin.") and name.endswith(SIDE_SUFFIX) for name in names)
