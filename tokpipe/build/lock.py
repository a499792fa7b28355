"""Locks that die with their process: one build per output folder, one owner per attempt."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from tokpipe.errors import OutputLockedError

# What file systems say that cannot lock at all (some Lustre and FUSE mounts).
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


@contextlib.contextmanager
def hold_lock(path: Path, what: str) -> Iterator[None]:
    """Hold `path` locked. The file stays; only the lock counts, and the kernel drops it when the process ends.

    Raises:
        OutputLockedError: if another process holds it, with what that process wrote about itself.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise OutputLockedError(f"{what} is in use by {holder}. Wait for it, stop it, or give another --out.") from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise OutputLockedError(
                f"{path}: this file system cannot lock files ({error.strerror}), so two builds could meet in {what}. "
                "Put --out on a file system with flock (local disk, NFS 4, Lustre mounted with -o flock)."
            ) from error
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock; true if that cannot be told."""
    try:
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
