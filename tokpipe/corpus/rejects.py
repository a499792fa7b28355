"""What was refused, where and why: one JSON line a record, and counts by reason.

The reasons are codes, listed in docs/corpus.md; a detail says more in words. `empty` is written down like the others but does not
count against `--max-rejects`, and a line with nothing on it is no record at all: it is only counted, as blank.
"""

from __future__ import annotations

import json
from collections import Counter
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TextIO

REASONS = (
    "bad_json",
    "bad_row",
    "empty",
    "invalid_utf8",
    "lone_surrogate",
    "missing_text",
    "not_a_string",
    "not_an_object",
    "null_text",
    "utf16",
)
NUM_FIRST = 5


class Reject(NamedTuple):
    """One refused record."""

    path: str
    """The file, as the inventory names it."""
    position: int
    """Byte offset in the (decompressed) file, or row."""
    reason: str
    detail: str


class RejectLog:
    """Counts refused records and writes each down as it comes; holds nothing but counts and the first few.

    Args:
        path: the JSONL file to write; `None` only counts. An existing file is replaced. A file that would stay empty is not made.
    """

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._file: TextIO | None = None
        self.counts: Counter[str] = Counter()
        """Refused records by reason, `empty` included."""
        self.num_records = 0
        """Records seen, good and refused."""
        self.blank = 0
        """Lines with nothing on them."""
        self.first: list[Reject] = []
        """The first few that count against `--max-rejects`, for a message."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    @property
    def num_rejects(self) -> int:
        """Refused records that count against `--max-rejects`: all but the empty ones."""
        return self.counts.total() - self.counts["empty"]

    def add(self, path: str, position: int, reason: str, detail: str = "") -> None:
        """Write one refused record down.

        Raises:
            ValueError: if `reason` is not one of `REASONS`.
        """
        if reason not in REASONS:
            raise ValueError(f"unknown reject reason {reason!r}; the codes are {', '.join(REASONS)}")
        self.counts[reason] += 1
        if reason != "empty" and len(self.first) < NUM_FIRST:
            self.first.append(Reject(path, position, reason, detail))
        if self._path is None:
            return
        if self._file is None:
            self._file = self._path.open("w", encoding="utf-8", newline="\n")
        record = {"path": path, "position": position, "reason": reason, "detail": detail}
        # In ASCII: a detail may quote a lone surrogate, which only an escape can carry.
        self._file.write(json.dumps(record) + "\n")

    def flush(self) -> None:
        """Hand everything written so far to the operating system."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Flush and close the file; the counts stay readable."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> RejectLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
