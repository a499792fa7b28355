"""Scratch folders of attempts: one a try, locked by the process that works in it, cleared once that process is dead."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from tokpipe.build.lock import hold_lock, is_held


class ScratchFolders:
    """`ROOT/LABEL.ID` with `ROOT/LABEL.ID.lock` beside it; both stores give their attempts such a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.contextmanager
    def open(self, label: str) -> Iterator[Path]:
        """A fresh locked folder, removed at the end; first clears what dead attempts with this label left."""
        self.remove_dead(label)
        folder = self.root / f"{label}.{secrets.token_hex(4)}"
        lock = folder.with_name(f"{folder.name}.lock")
        unseen = lock.with_name(f".{lock.name}")
        with hold_lock(unseen, str(folder)):
            unseen.rename(lock)  # so that nobody ever finds it before it is held, and takes it for that of a dead attempt
            try:
                folder.mkdir()
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                lock.unlink(missing_ok=True)

    def dead(self, label: str = "*") -> list[Path]:
        """Folders whose lock nobody holds. Each comes before its lock, so that a removal that is cut short is found again."""
        names = [path.name for path in self.root.glob(f"{label}.????????*") if not path.name.startswith(".")]
        stems = sorted({name.removesuffix(".lock") for name in names})
        unheld = [stem for stem in stems if not (self.root / f"{stem}.lock").exists() or not is_held(self.root / f"{stem}.lock")]
        paths = [self.root / f"{stem}{suffix}" for stem in unheld for suffix in ("", ".lock")]
        return [path for path in paths if path.exists()]

    def remove_dead(self, label: str = "*") -> None:
        """Remove what processes that no longer live have left."""
        for path in self.dead(label):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
