"""The local engine: every task once, deaths cost one task, failures are named, nothing outlives its parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tokpipe.engine.base import TaskSpec
from tokpipe.engine.local import LocalConfig, LocalEngine
from tokpipe.engine.progress import NoProgress
from tokpipe.errors import BuildInterruptedError, EngineError, TaskFailedError


def results(spec: TaskSpec) -> set[int]:
    return {int(path.name) for path in (Path(spec.out) / "results").iterdir()}


def attempts(spec: TaskSpec) -> list[int]:
    return [int(line) for line in (Path(spec.out) / "attempts").read_text().split()]


def wait_until(condition, seconds: float = 20.0):
    """Poll until `condition()` is true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError("the condition never came true")
        time.sleep(0.02)
    return value


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_run_does_every_task_once_and_reports_all(toy, recorder):
    spec = toy(7)
    with LocalEngine(LocalConfig(workers=2)) as engine:
        engine.run(spec, recorder)
    assert results(spec) == set(range(7))
    assert sorted(attempts(spec)) == list(range(7))
    assert recorder.stages == [("toy", 28, 0)]
    assert (recorder.total.documents, recorder.total.tokens, recorder.total.text_bytes) == (7, 70, 28)
    assert recorder.finished == 1


def test_run_starts_with_the_largest_and_skips_what_is_done(toy, recorder):
    spec = toy(4)
    (Path(spec.out) / "results" / "3").touch()
    with LocalEngine(LocalConfig(workers=1)) as engine:
        engine.run(spec, recorder)
    assert attempts(spec) == [2, 1, 0]
    assert recorder.stages == [("toy", 10, 4)]


def test_run_without_missing_tasks_starts_no_process(toy, recorder):
    spec = toy(1)
    (Path(spec.out) / "results" / "0").touch()
    with LocalEngine(LocalConfig(workers=2)) as engine:
        engine.run(spec, recorder)
        assert not engine._workers


def test_a_killed_worker_costs_one_task_which_runs_again(toy, recorder):
    spec = toy(5, {3: "kill_once"})
    with LocalEngine(LocalConfig(workers=2)) as engine:
        engine.run(spec, recorder)
    assert results(spec) == set(range(5))
    assert attempts(spec).count(3) == 2
    assert recorder.total.documents == 5


def test_a_task_that_raises_is_named_and_the_others_finish(toy, recorder):
    spec = toy(5, {4: "raise"})
    with LocalEngine(LocalConfig(workers=2)) as engine:
        with pytest.raises(TaskFailedError, match=r"1 of 5 tasks failed(.|\n)*toy-00004: ValueError: task 4 always fails"):
            engine.run(spec, recorder)
        assert results(spec) == set(range(4))
        (Path(spec.out) / "mended").touch()
        engine.run(spec, recorder)
    assert results(spec) == set(range(5))
    assert attempts(spec).count(4) == 2


def test_a_task_that_keeps_killing_its_worker_is_given_up(toy, recorder, tmp_path):
    spec = toy(3, {1: "kill"})
    message = r"toy-00001: its process was killed \(signal 9.*2 times"
    with LocalEngine(LocalConfig(workers=1, max_attempts=2)) as engine, pytest.raises(TaskFailedError, match=message):
        engine.run(spec, recorder)
    assert results(spec) == {0, 2}


def test_workers_that_cannot_start_are_an_error(toy, recorder, monkeypatch):
    monkeypatch.setattr("tokpipe.engine.local.sys.executable", "/bin/false")
    with LocalEngine(LocalConfig(workers=2)) as engine, pytest.raises(EngineError, match="ended before they were ready"):
        engine.run(toy(9), recorder)


def test_workers_are_kept_between_runs_and_ended_by_close(toy):
    spec = toy(2)
    engine = LocalEngine(LocalConfig(workers=1))
    engine.run(spec, NoProgress())
    pid = engine._workers[0].process.pid
    (Path(spec.out) / "results" / "0").unlink()
    engine.run(spec, NoProgress())
    assert engine._workers[0].process.pid == pid
    engine.close()
    assert not is_alive(pid)


def test_large_workers_are_not_kept(toy, monkeypatch):
    monkeypatch.setattr("tokpipe.engine.local.RETIRE_BYTES", 1_000_000)
    with LocalEngine(LocalConfig(workers=1)) as engine:
        engine.run(toy(2), NoProgress())
        assert not engine._workers


def test_every_run_opens_the_tasks_anew(toy):
    spec = toy(2, {0: "raise", 1: "raise"})
    with LocalEngine(LocalConfig(workers=1)) as engine:
        with pytest.raises(TaskFailedError):
            engine.run(spec, NoProgress())
        behaviour = Path(spec.out) / "behaviour.json"
        behaviour.write_text(behaviour.read_text().replace("raise", "fine"))
        engine.run(spec, NoProgress())
    assert results(spec) == {0, 1}


SCRIPT = """
import sys
from tokpipe.engine.base import TaskSpec
from tokpipe.engine.local import LocalConfig, LocalEngine
from tokpipe.engine.progress import NoProgress
from tokpipe.errors import BuildInterruptedError
try:
    with LocalEngine(LocalConfig(workers=2)) as engine:
        engine.run(TaskSpec("toy_tasks:open_tasks", sys.argv[1], "toy"), NoProgress())
except BuildInterruptedError as error:
    print(error)
    sys.exit(1)
"""


@pytest.fixture
def slow_run(toy):
    """A process that runs two slow tasks, and the pids of its workers, which are in the middle of them."""
    spec = toy(3, {1: "slow", 2: "slow"})
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, spec.out], stdout=subprocess.PIPE, text=True)
    started = lambda: [path.name for path in Path(spec.out).glob("started-*")]  # noqa: E731
    names = wait_until(lambda: len(started()) == 2 and started())
    yield process, [int(name.rpartition("-")[2]) for name in names]
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_workers_and_says_how_to_go_on(slow_run, number):
    process, workers = slow_run
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "Stopped during toy: 0 of 3 tasks are done and stay done. The same command goes on from here." in output
    assert not any(is_alive(pid) for pid in workers)


def test_no_worker_outlives_a_killed_parent(slow_run):
    process, workers = slow_run
    assert all(is_alive(pid) for pid in workers)
    process.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in workers), 3.0)


def test_an_interrupt_in_the_caller_becomes_the_build_error(toy, monkeypatch):
    def interrupt(*unused):
        raise KeyboardInterrupt

    engine = LocalEngine(LocalConfig(workers=1))
    monkeypatch.setattr("tokpipe.engine.local.wait", interrupt)
    with pytest.raises(BuildInterruptedError, match="The same command goes on from here"):
        engine.run(toy(2), NoProgress())
    assert not engine._workers


@pytest.mark.parametrize(("fields", "message"), [({"workers": -1}, "workers must be 0"), ({"max_attempts": 0}, "at least 1")])
def test_config_refuses_nonsense(fields, message):
    with pytest.raises(ValueError, match=message):
        LocalConfig(**fields)


def test_config_counts_the_cores_it_may_use():
    assert LocalConfig().num_workers == len(os.sched_getaffinity(0))
    assert LocalConfig(workers=3).num_workers == 3
