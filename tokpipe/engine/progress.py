"""How far a stage is: a bar on a terminal, a line every 30 seconds elsewhere.

Bytes are counted twice, because they answer different questions: in the terms of the inventory (compressed as on disk) they add
up to a known total, so share and time left come from them; as text they say how fast the work is.
"""

from __future__ import annotations

import logging
import time
from typing import TextIO

from tqdm import tqdm

from tokpipe.engine.base import Counters, ProgressSink

log = logging.getLogger(__name__)

LINE_SECONDS = 30.0


def human_count(value: float) -> str:
    """A count with at most four digits: `999`, `12.3 k`, `4.56 M`."""
    for factor, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * factor:  # what three digits round up to 1,000 belongs to the next unit
            return f"{value / factor:.3g}{unit}" if value < 999.5 * factor else f"{value / factor:,.0f}{unit}"
    return f"{value:,.0f}"


def human_bytes(value: float) -> str:
    """Bytes in powers of ten: `12.3 MB`."""
    text = human_count(value)
    return f"{text}B" if text[-1:].isalpha() else f"{text} B"


def human_seconds(value: float) -> str:
    """A duration in its two largest units: `42 s`, `3 min 5 s`, `2 h 10 min`."""
    seconds = max(0, round(value))
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86400} d {seconds % 86400 // 3600} h"


class LineProgress:
    """One log line every `interval` seconds and one at the end of each stage."""

    def __init__(self, interval: float = LINE_SECONDS) -> None:
        self._interval = interval
        self._stage = ""
        self._total = 0
        self._before = 0
        self._began = self._last = time.monotonic()
        self._done = Counters()

    def start(self, stage: str, total_bytes: int, done_bytes: int) -> None:
        """Reset the clock; `done_bytes` count towards the share, not towards the speed."""
        self._stage, self._total, self._before = stage, total_bytes, done_bytes
        self._done = Counters()
        self._began = self._last = time.monotonic()

    def add(self, counters: Counters) -> None:
        """Add; print when the last line is old enough. Engines also call this with nothing, as a clock tick."""
        self._done = self._done + counters
        if time.monotonic() - self._last >= self._interval:
            self._last = time.monotonic()
            log.info("%s: %s", self._stage, self.describe())

    def finish(self) -> None:
        """Print the stage's last line."""
        log.info("%s: %s", self._stage, self.describe(finished=True))

    def describe(self, *, finished: bool = False) -> str:
        """The line without the stage's name."""
        seconds = max(time.monotonic() - self._began, 1e-9)
        share = (self._before + self._done.text_bytes) / self._total if self._total else 1.0
        parts = [f"{min(share, 1.0):.0%} of {human_bytes(self._total)}"]
        parts += speed_parts(self._done, seconds)
        if finished:
            parts.append(f"took {human_seconds(seconds)}")
        elif self._done.text_bytes:
            left = max(self._total - self._before - self._done.text_bytes, 0)
            parts.append(f"{human_seconds(seconds * left / self._done.text_bytes)} left")
        return ", ".join(parts)


def speed_parts(done: Counters, seconds: float) -> list[str]:
    """Documents, tokens and speeds, those that are not zero."""
    parts = []
    if done.documents:
        parts.append(f"{done.documents:,} documents")
    if done.tokens:
        parts.append(f"{human_count(done.tokens)} tokens")
    if done.decoded_bytes:
        parts.append(f"{done.decoded_bytes / seconds / 1e6:,.1f} MB/s")
    if done.tokens:
        parts.append(f"{human_count(done.tokens / seconds)} tokens/s")
    return parts


class BarProgress:
    """A tqdm bar: share, time left, documents, tokens, speeds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: tqdm | None = None
        self._done = Counters()
        self._began = 0.0

    def start(self, stage: str, total_bytes: int, done_bytes: int) -> None:
        """Draw an empty bar."""
        self._done = Counters()
        self._began = time.monotonic()
        layout = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
        self._bar = tqdm(
            total=total_bytes,
            initial=done_bytes,
            desc=stage,
            unit="B",
            unit_scale=True,
            file=self._stream,
            dynamic_ncols=True,
            bar_format=layout,
        )

    def add(self, counters: Counters) -> None:
        """Move the bar."""
        if self._bar is None:
            return
        self._done = self._done + counters
        parts = speed_parts(self._done, max(time.monotonic() - self._began, 1e-9))
        self._bar.set_postfix_str(", ".join(parts), refresh=False)
        self._bar.update(counters.text_bytes)

    def finish(self) -> None:
        """Leave the finished bar on the screen."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class NoProgress:
    """Says nothing: for the library's callers and for tests."""

    def start(self, stage: str, total_bytes: int, done_bytes: int) -> None:
        """Ignore."""

    def add(self, counters: Counters) -> None:
        """Ignore."""

    def finish(self) -> None:
        """Ignore."""


def open_progress(stream: TextIO, *, interval: float = LINE_SECONDS) -> ProgressSink:
    """A bar if `stream` is a terminal, else lines through the log."""
    return BarProgress(stream) if stream.isatty() else LineProgress(interval)
