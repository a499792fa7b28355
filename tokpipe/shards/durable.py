"""Files that are either whole or not there: written to a side name, flushed to the disk, renamed, the folder flushed too."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from tokpipe.shards.format import SIDE_SUFFIX


def side_path(path: Path) -> Path:
    """A fresh name beside `path` for a file in the making.

    Two attempts at one task never share it, so neither can write into the other's file. It ends in `.part`.
    """
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{SIDE_SUFFIX}")


def fsync_folder(folder: Path) -> None:
    """Make the renames inside a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Write a small file so that a reader, at any instant and after any crash, finds the old one whole or the new one whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    side = side_path(path)
    try:
        with side.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        side.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            side.unlink()
        raise
    fsync_folder(path.parent)
