"""The worker of other people's schedulers: strides, failure notes, a clean end on a signal."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokpipe.engine.base import Counters, TaskSpec
from tokpipe.engine.progress_files import FileProgress, num_begun, read_failures
from tokpipe.engine.worker import EXIT_STOPPED, Job, main, run_element, write_json


@given(st.lists(st.integers(0, 5000), unique=True, max_size=300), st.integers(1, 40))
def test_elements_cover_every_task_once(indices, num_elements):
    job = Job(spec=TaskSpec("a:b", "out", "stage"), indices=tuple(indices), num_elements=num_elements)
    covered = [index for number in range(num_elements) for index in job.element(number)]
    assert sorted(covered) == sorted(indices)


@pytest.mark.parametrize("num_tasks", [999, 1000, 1001, 2000])
def test_elements_differ_by_at_most_one_task(num_tasks):
    job = Job(spec=TaskSpec("a:b", "out", "stage"), indices=tuple(range(num_tasks)), num_elements=min(num_tasks, 1001))
    sizes = [len(job.element(number)) for number in range(job.num_elements)]
    assert sum(sizes) == num_tasks and max(sizes) - min(sizes) <= 1


def test_job_file_round_trips(tmp_path):
    job = Job(spec=TaskSpec("a:b", "out", "stage"), indices=(3, 1, 2), num_elements=2)
    job.write(tmp_path / "job")
    assert Job.read(tmp_path / "job") == job


def test_a_failing_task_is_noted_and_the_next_one_runs(toy, tmp_path):
    spec = toy(5, {3: "raise"})
    folder = tmp_path / "job"
    Job(spec=spec, indices=(4, 3, 2, 1, 0), num_elements=1).write(folder)
    assert run_element(folder, 0) == 1
    assert spec.open().missing() == [3]
    assert "task 3 always fails" in read_failures(folder)[3]
    assert FileProgress(folder).new() == Counters(documents=4, tokens=40, text_bytes=1 + 2 + 3 + 5)


def test_an_element_that_succeeds_exits_with_zero(toy, tmp_path):
    Job(spec=toy(2), indices=(1, 0), num_elements=1).write(tmp_path / "job")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        assert main([str(tmp_path / "job"), "0"]) == 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_before_the_time_limit_ends_the_worker_between_results(toy, tmp_path, number):
    spec = toy(2, {1: "slow"})
    folder = tmp_path / "job"
    Job(spec=spec, indices=(1, 0), num_elements=1).write(folder)
    process = subprocess.Popen([sys.executable, "-m", "tokpipe.engine.worker", str(folder), "0"], env=os.environ)
    deadline = time.monotonic() + 30
    while not list((tmp_path / "toy").glob("started-1-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(timeout=30) == EXIT_STOPPED
    assert spec.open().missing() == [1, 0]


def test_progress_never_goes_back_when_an_element_starts_over(tmp_path):
    def leave(*counters: int, begun: int) -> None:
        write_json(tmp_path / "progress-0.json", {"begun": begun, "counters": asdict(Counters(*counters))})

    progress = FileProgress(tmp_path)
    leave(10, 100, 1000, 4000, begun=3)
    assert progress.new() == Counters(10, 100, 1000, 4000)
    leave(2, 20, 200, 800, begun=1)
    assert progress.new() == Counters()
    leave(12, 120, 1200, 4800, begun=3)
    assert progress.new() == Counters(2, 20, 200, 800)
    assert [num_begun(tmp_path, element) for element in (0, 1)] == [3, 0]


def test_a_progress_file_that_is_replaced_while_it_is_read_counts_at_the_next_look(tmp_path, monkeypatch):
    write_json(tmp_path / "progress-0.json", {"begun": 1, "counters": asdict(Counters(1, 10, 100, 400))})
    progress = FileProgress(tmp_path)

    def stale(path, **_):
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", stale)
        assert progress.new() == Counters()
    assert progress.new() == Counters(1, 10, 100, 400)
