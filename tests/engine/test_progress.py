"""Progress: a line now and then without a terminal, a bar on one; numbers that a person can read."""

from __future__ import annotations

import io
import logging

import pytest

from tokpipe.engine.base import Counters
from tokpipe.engine.progress import (
    BarProgress,
    LineProgress,
    NoProgress,
    human_bytes,
    human_count,
    human_seconds,
    open_progress,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1 k"),
        (12_345, "12.3 k"),
        (4_560_000, "4.56 M"),
        (2e9, "2 G"),
        (3.5e15, "3,500 T"),
        (999_600, "1 M"),
        (999.7e12, "1,000 T"),
    ],
)
def test_human_count(value, text):
    assert human_count(value) == text


@pytest.mark.parametrize(("value", "text"), [(7, "7 B"), (12_300_000, "12.3 MB"), (1 << 30, "1.07 GB")])
def test_human_bytes(value, text):
    assert human_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.4, "0 s"), (59.6, "1 min 0 s"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (100_000, "1 d 3 h"), (-1, "0 s")],
)
def test_human_seconds(value, text):
    assert human_seconds(value) == text


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr("tokpipe.engine.progress.time.monotonic", lambda: now[0])
    return now


def test_lines_come_when_the_interval_has_passed_and_at_the_end(clock, caplog):
    caplog.set_level(logging.INFO)
    progress = LineProgress(30.0)
    progress.start("tokenize", 1_000_000, 500_000)
    clock[0] += 10
    progress.add(Counters(documents=5, tokens=1000, text_bytes=250_000, decoded_bytes=4_000_000))
    assert not caplog.messages
    clock[0] += 30
    progress.add(Counters())
    assert caplog.messages == ["tokenize: 75% of 1 MB, 5 documents, 1 k tokens, 0.1 MB/s, 25 tokens/s, 40 s left"]
    progress.finish()
    assert caplog.messages[1].endswith("25 tokens/s, took 40 s")


def test_lines_without_any_work_divide_by_nothing(clock, caplog):
    caplog.set_level(logging.INFO)
    progress = LineProgress()
    progress.start("train", 0, 0)
    progress.finish()
    assert caplog.messages == ["train: 100% of 0 B, took 0 s"]


def test_bar_shows_share_documents_and_speed(clock):
    stream = Terminal()
    progress = open_progress(stream)
    assert isinstance(progress, BarProgress)
    progress.add(Counters(documents=1))
    progress.start("count", 1000, 0)
    clock[0] += 2
    progress.add(Counters(documents=12, text_bytes=1000, decoded_bytes=2_000_000))
    progress.finish()
    progress.finish()
    last = stream.getvalue().rpartition("\r")[2]
    assert "count: 100%" in last and "12 documents, 1.0 MB/s" in last


def test_open_progress_without_a_terminal_gives_lines():
    assert isinstance(open_progress(io.StringIO()), LineProgress)


def test_no_progress_says_nothing(capsys, caplog):
    progress = NoProgress()
    progress.start("count", 1, 0)
    progress.add(Counters(documents=1))
    progress.finish()
    assert not caplog.messages and capsys.readouterr() == ("", "")
