"""One build by processes that somebody else started: here three of them, with short waits."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tokpipe.build import build, open_store
from tokpipe.build.task_worker import DONE, FAILED, SharedEngine, WorkerPlace, _announced, announced_name, build_together
from tokpipe.build.tasks import open_tasks
from tokpipe.cli.main import cli
from tokpipe.engine.progress import NoProgress
from tokpipe.errors import BuildError, OutputLockedError, TaskFailedError

PLACE = WorkerPlace(rank=0, num_workers=3, token="7.0", poll_seconds=0.05, patience_seconds=1.0)

SCRIPT = """
import json, sys
from tokpipe.build import BuildConfig, PartitionConfig
from tokpipe.build.config import from_settings
from tokpipe.build.task_worker import WorkerPlace, build_together
from tokpipe.engine.progress import NoProgress
settings, out, rank = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
config = from_settings(settings, out=out, max_rejects=0.001)
place = WorkerPlace(rank=rank, num_workers=3, token="7.0", poll_seconds=0.1)
report = build_together(config, place, NoProgress())
print(report.dataset_id if report else "", end="")
"""


def start(config, rank: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, json.dumps(config.settings()), config.out, str(rank)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def announced(config) -> str:
    return json.loads(open_store(config.out).read(announced_name(PLACE)))["stage"]


def end(process: subprocess.Popen[str]) -> str:
    words, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    return words


def test_three_processes_make_the_dataset_of_one(given, inline):
    expected = build(replace(given, out=f"{given.out}-alone"), engine=inline).dataset_id
    processes = [start(given, rank) for rank in (1, 2, 0)]
    assert [end(process) for process in processes] == ["", "", expected]
    assert announced(given) == DONE


def test_shares_cover_every_task_once_and_like_amounts(given, inline):
    build(given, engine=inline)
    tasks = open_tasks(given.out, "tokenize")
    shares = [replace(PLACE, rank=rank).share(tasks) for rank in range(3)]
    assert sorted(index for share in shares for index in share) == list(range(len(tasks)))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_process_0_does_what_the_others_leave(given, inline):
    """The other two never come: after the patience process 0 does their shares too."""
    expected = build(replace(given, out=f"{given.out}-alone"), engine=inline).dataset_id
    report = build_together(given, PLACE, NoProgress())
    assert report is not None and report.dataset_id == expected


def test_a_task_that_always_fails_is_given_up(given, monkeypatch):
    from tokpipe.build.tokenize_task import TokenizeTasks

    def fail(self, index, attempt, report):
        raise ValueError(f"no {index}")

    monkeypatch.setattr(TokenizeTasks, "work", fail)
    with pytest.raises(TaskFailedError, match=r"tasks failed(.|\n)*ValueError: no \d .*\(2 times\)"):
        build_together(given, replace(PLACE, max_attempts=2), NoProgress())
    assert announced(given) == FAILED


def test_followers_end_when_process_0_has_failed(tmp_path, given):
    store = open_store(given.out)
    store.write(announced_name(PLACE), json.dumps({"stage": FAILED}).encode())
    with pytest.raises(BuildError, match="process 0 of this job has failed"):
        build_together(given, replace(PLACE, rank=1), NoProgress())


def test_followers_ignore_what_another_job_announced(given):
    store = open_store(given.out)
    store.write(announced_name(replace(PLACE, token="6.0")), json.dumps({"stage": FAILED}).encode())
    follower = threading.Thread(target=build_together, args=(given, replace(PLACE, rank=1), NoProgress()))
    follower.start()
    follower.join(0.3)
    assert follower.is_alive()
    store.write(announced_name(PLACE), json.dumps({"stage": DONE}).encode())
    follower.join(10)
    assert not follower.is_alive()


def test_a_second_job_is_refused_and_leaves_the_announcements_of_the_first(given):
    store = open_store(given.out)
    store.write(announced_name(PLACE), json.dumps({"stage": "count"}).encode())
    with store.lock(), pytest.raises(OutputLockedError, match="in use"):
        build_together(given, replace(PLACE, token="8.0"), NoProgress())
    assert announced(given) == "count"


def test_sigterm_to_process_0_reaches_the_others(given):
    """Process 0 waits for a process that never comes; the end of it must not leave the third waiting for ever."""
    processes = [start(given, rank) for rank in (1, 0)]
    deadline = time.monotonic() + 100
    while not Path(given.out, announced_name(PLACE)).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    processes[1].terminate()
    for process in processes:
        _, words = process.communicate(timeout=60)
        assert process.returncode == 1
        assert ("process 0 of this job has failed" if process is processes[0] else "the same command goes on") in words.lower()
    assert announced(given) == FAILED


def test_an_announcement_that_is_stale_is_read_again(given, monkeypatch):
    store = open_store(given.out)
    store.write(announced_name(PLACE), json.dumps({"stage": "count"}).encode())

    def stale(name):
        raise OSError(errno.ESTALE, "Stale file handle", name)

    with monkeypatch.context() as patch:
        patch.setattr(store, "read", stale)
        assert _announced(store, PLACE) is None
    assert _announced(store, PLACE) == "count"


def test_a_place_must_be_one_of_the_processes():
    with pytest.raises(ValueError, match=r"\[0, 3\), got 3"):
        WorkerPlace(rank=3, num_workers=3, token="x")


def test_waiting_ends_as_soon_as_all_others_are_through(given, inline):
    build(given, engine=inline)
    store = open_store(given.out)
    for receipt in list(Path(given.out, "build/receipts/tokenize").iterdir())[:1]:
        receipt.unlink()
    for rank in (1, 2):
        store.write(f"build/through/7.0/tokenize-{rank:05d}", b"")
    place = replace(PLACE, patience_seconds=1e9)
    tasks = open_tasks(given.out, "tokenize")
    SharedEngine(store, place)._wait("tokenize", tasks, NoProgress())
    assert len(tasks.missing()) == 1


@pytest.mark.parametrize("options", [[], ["--engine", "slurm"]])
def test_without_srun_it_is_a_usage_error(corpus, tmp_path, monkeypatch, options):
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    arguments = ["build", "--corpus", str(corpus), "--out", str(tmp_path / "out"), "--task-worker", *options]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 2
    assert "srun" in done.stderr
    assert not (tmp_path / "out").exists()
