"""The engine's side of the files that workers on other machines leave: what is new since the last look, and why tasks failed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from tokpipe.engine.base import Counters


class FileProgress:
    """Sums the `progress-*.json` of a job folder and hands out what was added since the last call."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._seen = Counters()

    def new(self) -> Counters:
        """What was done since the last call. An element that was run again may have started over: never below zero."""
        total = Counters()
        for path in self.folder.glob("progress-*.json"):
            # NFS calls a file stale that is replaced while it is read; the next look counts it.
            with contextlib.suppress(OSError):
                total += Counters(**json.loads(path.read_text(encoding="utf-8"))["counters"])
        added = Counters(
            max(0, total.documents - self._seen.documents),
            max(0, total.tokens - self._seen.tokens),
            max(0, total.text_bytes - self._seen.text_bytes),
            max(0, total.decoded_bytes - self._seen.decoded_bytes),
        )
        self._seen += added
        return added


def num_begun(folder: Path, element: int) -> int:
    """How many of its tasks an element has begun, in its latest run."""
    path = folder / f"progress-{element}.json"
    return int(json.loads(path.read_text(encoding="utf-8"))["begun"]) if path.exists() else 0


def read_failures(folder: Path) -> dict[int, str]:
    """Task index -> reason, from the `failure-*.json` of a job folder."""
    return {
        int(path.stem.removeprefix("failure-")): str(json.loads(path.read_text(encoding="utf-8"))["reason"])
        for path in folder.glob("failure-*.json")
    }
