"""Where a build's results go: small files written whole, and attempts that publish what they have finished.

Names are relative to the output, with forward slashes: `shards/hi-00003-000.bin`. A store promises one thing: at any instant, and
after any crash, a name holds either all of what was written under it or what it held before.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from tokpipe.build.lock import hold_lock
from tokpipe.build.object_store import ObjectStore
from tokpipe.build.scratch import ScratchFolders
from tokpipe.errors import BuildError, TokpipeError
from tokpipe.shards import fsync_folder, write_durably

ATTEMPTS = "build/attempts"
LOCK = "build/lock"


class Attempt(Protocol):
    """One try at one task: a scratch folder on a local disk, and a way to make whole files in it visible."""

    folder: Path
    """Scratch space, removed when the attempt ends."""

    def path(self, name: str) -> Path:
        """Where in the scratch folder to write what will be published as `name`; its parents are there."""
        ...

    def publish(self, name: str, suffixes: Sequence[str] = ("",)) -> str:
        """Make `folder/name + suffix` durable and visible, in the order given; return the name they now stand under."""
        ...


class Store(Protocol):
    """What a build asks of the place its results go to."""

    out: str
    """As the user gave it; opens again in any process with `open_store`."""

    def exists(self, name: str) -> bool:
        """Whether a file is there."""
        ...

    def num_bytes(self, name: str) -> int:
        """Size of a file; -1 if it is not there."""
        ...

    def read(self, name: str) -> bytes:
        """A small file's bytes; FileNotFoundError if it is not there."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a small file, in place of an older one."""
        ...

    def put_receipt(self, name: str, data: bytes) -> bytes:
        """Write a small file unless it is there; return the bytes that stand."""
        ...

    def names(self, folder: str) -> list[str]:
        """Names of all files below a folder (`""` is the output itself), sorted; none if it is not there."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; not there is fine."""
        ...

    def local(self, name: str) -> Path:
        """A path on this machine where a published file or folder can be read."""
        ...

    def attempt(self, label: str) -> AbstractContextManager[Attempt]:
        """A fresh attempt at the task called `label`; clears what dead attempts at it left."""
        ...

    def dead_attempts(self) -> list[str]:
        """Names of scratch folders, and their locks, that no living process owns."""
        ...

    def remove_dead_attempts(self) -> None:
        """Remove those."""
        ...

    def lock(self) -> AbstractContextManager[None]:
        """Keep other builds off this output while it is held."""
        ...

    def free_bytes(self) -> int:
        """Bytes that may still be written; a large number if nobody can tell."""
        ...


class LocalStore:
    """A folder on a file system."""

    def __init__(self, out: str | os.PathLike[str]) -> None:
        self.root = Path(out)
        self.out = str(out)
        self._scratch = ScratchFolders(self.root / ATTEMPTS)

    def exists(self, name: str) -> bool:
        """Whether a file is there."""
        return (self.root / name).exists()

    def num_bytes(self, name: str) -> int:
        """Size of a file; -1 if it is not there."""
        try:
            return (self.root / name).stat().st_size
        except FileNotFoundError:
            return -1

    def read(self, name: str) -> bytes:
        """A small file's bytes."""
        return (self.root / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """Side name, fsync, rename, fsync of the folder."""
        write_durably(self.root / name, data)

    def put_receipt(self, name: str, data: bytes) -> bytes:
        """Two attempts at once write equal receipts here, because names and bytes of a local task depend on the plan alone."""
        if self.exists(name):
            return self.read(name)
        self.write(name, data)
        return data

    def names(self, folder: str) -> list[str]:
        """Names of all files below a folder, sorted."""
        found = []
        for parent, _, files in os.walk(self.root / folder):
            relative = Path(parent).relative_to(self.root).as_posix()
            found += [file if relative == "." else f"{relative}/{file}" for file in files]
        return sorted(found)

    def remove(self, name: str) -> None:
        """Remove a file; not there is fine."""
        (self.root / name).unlink(missing_ok=True)

    def local(self, name: str) -> Path:
        """The file itself."""
        return self.root / name

    @contextlib.contextmanager
    def attempt(self, label: str) -> Iterator[LocalAttempt]:
        """A locked folder below `build/attempts`, on the same file system, so that publishing is a rename."""
        with self._scratch.open(label) as folder:
            yield LocalAttempt(self.root, folder)

    def dead_attempts(self, label: str = "*") -> list[str]:
        """Scratch folders whose lock nobody holds, and their locks."""
        return [path.relative_to(self.root).as_posix() for path in self._scratch.dead(label)]

    def remove_dead_attempts(self, label: str = "*") -> None:
        """Remove what processes that no longer live have left."""
        self._scratch.remove_dead(label)

    def lock(self) -> AbstractContextManager[None]:
        """An flock on `build/lock`."""
        return hold_lock(self.root / LOCK, self.out)

    def free_bytes(self) -> int:
        """Free bytes of the file system that holds, or will hold, the folder."""
        folder = self.root.absolute()
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free


class LocalAttempt:
    """Publishes by rename."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self.folder = folder

    def path(self, name: str) -> Path:
        """The same relative name inside the scratch folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def publish(self, name: str, suffixes: Sequence[str] = ("",)) -> str:
        """Flush and rename each file, then flush the folder they are in now."""
        for suffix in suffixes:
            source, target = self.folder / (name + suffix), self._root / (name + suffix)
            with source.open("rb") as file:
                os.fsync(file.fileno())
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)
        fsync_folder((self._root / name).parent)
        return name


@contextlib.contextmanager
def output_errors(out: str) -> Iterator[None]:
    """Put the operating system's errors (a full disk, a folder that may not be written) into words.

    Raises:
        BuildError: in place of an OSError that is not one of ours already.
    """
    try:
        yield
    except TokpipeError:
        raise
    except OSError as error:
        raise BuildError(
            f"{out}: the build cannot go on ({error}). What is done stays done: mend the cause and run the same command again."
        ) from error


def write_by(store: Store, name: str, write: Callable[[Path], object]) -> None:
    """Publish the small file `name` that `write(folder)` leaves in a folder, whatever the store."""
    with tempfile.TemporaryDirectory(prefix="tokpipe-") as folder:
        write(Path(folder))
        store.write(name, (Path(folder) / name).read_bytes())


def open_store(out: str) -> Store:
    """The store for an output: a folder, or a prefix of an object store for a URL.

    Raises:
        BuildError: if `out` is a file, or a URL that holds credentials.
    """
    local = out.removeprefix("file://")
    if "://" in local:
        return ObjectStore(out)
    if Path(local).exists() and not Path(local).is_dir():
        raise BuildError(f"{out}: is a file, expected a folder or a path that does not exist yet. Give another --out.")
    return LocalStore(local)
