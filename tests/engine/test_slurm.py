"""The Slurm engine: its script and parsing everywhere, its behaviour on a real Slurm of two virtual nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import pytest

from tokpipe.engine.attempts import Attempts
from tokpipe.engine.base import Counters, TaskSpec
from tokpipe.engine.slurm import SlurmConfig, SlurmEngine, new_folder, sbatch_script
from tokpipe.engine.worker import Job, write_json
from tokpipe.errors import BuildInterruptedError, EngineError, TaskFailedError

FAST = SlurmConfig(memory="100M", time_limit="00:10:00", poll_seconds=0.3)


def toy_spec(tasks) -> TaskSpec:
    return TaskSpec("toy_tasks:open_tasks", str(tasks.out), tasks.stage)


def attempts(tmp_path, index):
    return (tmp_path / "toy" / "attempts").read_text().split().count(str(index))


def test_script_holds_every_option(tmp_path):
    config = SlurmConfig(partition="cpu", account="nlp", extra=("--qos=low",), max_parallel=50)
    script = sbatch_script(config, "tokenize", tmp_path, 200)
    for line in ("--array=0-199%50", "--partition=cpu", "--account=nlp", "--qos=low", "--signal=B:USR1@120", "--time=04:00:00"):
        assert f"#SBATCH {line}\n" in script
    assert script.startswith("#!/bin/sh\n") and "exec " in script


def test_script_quotes_the_folder_of_its_log(tmp_path):
    script = sbatch_script(FAST, "toy", tmp_path / '100% "new" texts', 1)
    assert f'#SBATCH --output="{tmp_path}/100%% \\"new\\" texts"/element-%a.log\n' in script


def test_an_extra_line_cannot_smuggle_in_a_command():
    with pytest.raises(ValueError, match="starts with --"):
        SlurmConfig(extra=("rm -rf /",))
    with pytest.raises(ValueError, match="one line"):
        SlurmConfig(extra=("--qos=low\nrm",))


def test_each_array_gets_a_folder_of_its_own(tmp_path):
    assert new_folder(tmp_path, "count").name == "count-0000"
    (tmp_path / "count-0007").mkdir()
    (tmp_path / "count-merge-0011").mkdir()
    assert new_folder(tmp_path, "count").name == "count-0008"


def test_what_a_lost_element_never_came_to_has_not_failed(toy, tmp_path):
    """Two elements of three tasks. Element 0 did one and was lost in its second; element 1 never started."""
    tasks = toy(6).open()
    folder, attempts = tmp_path / "job", Attempts(1)
    Job(spec=toy_spec(tasks), indices=(5, 4, 3, 2, 1, 0), num_elements=2).write(folder)
    write_json(folder / "progress-0.json", {"counters": {}, "begun": 2})
    SlurmEngine(FAST, tmp_path)._book_failures(tasks, attempts, [4, 3, 2, 1, 0], folder)
    assert attempts.runnable([4, 3, 2, 1, 0]) == [4, 2, 1, 0]


def test_where_nothing_was_done_everything_has_failed(toy, tmp_path):
    tasks = toy(2).open()
    folder, attempts = tmp_path / "job", Attempts(1)
    Job(spec=toy_spec(tasks), indices=(1, 0), num_elements=2).write(folder)
    SlurmEngine(FAST, tmp_path)._book_failures(tasks, attempts, [1, 0], folder)
    assert attempts.runnable([1, 0]) == []


def test_a_machine_without_slurm_is_told_so(toy, tmp_path, recorder, monkeypatch):
    spec = toy(1)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="needs `sbatch`"):
        SlurmEngine(FAST, tmp_path / "work").run(spec, recorder)


@pytest.mark.engine
def test_a_work_folder_may_have_any_name(slurm, toy, tmp_path, recorder):
    work = tmp_path / '100%j of "it\'s" $HOME'
    SlurmEngine(FAST, work).run(toy(2), recorder)
    assert sorted(path.name for path in work.glob("toy-0000/*.log")) == ["element-0.log", "element-1.log"]


@pytest.mark.engine
def test_tasks_that_raise_or_are_killed_run_again(slurm, toy, tmp_path, recorder):
    spec = toy(12, {2: "raise_once", 5: "kill_once"})
    SlurmEngine(FAST, tmp_path / "work").run(spec, recorder)
    assert spec.open().missing() == []
    assert [attempts(tmp_path, i) for i in (2, 5, 7)] == [2, 2, 1]
    assert recorder.stages == [("toy", sum(range(13)), 0)]
    assert recorder.total == Counters(documents=12, tokens=120, text_bytes=sum(range(13)))
    assert recorder.finished == 1


@pytest.mark.engine
def test_a_task_that_always_fails_is_named_and_the_rest_is_done(slurm, toy, tmp_path, recorder):
    spec = toy(6, {3: "raise"})
    with pytest.raises(
        TaskFailedError, match=r"1 of 6 tasks failed(.|\n)*toy-00003: ValueError: task 3 always fails.*\(3 times\)"
    ):
        SlurmEngine(FAST, tmp_path / "work").run(spec, recorder)
    assert spec.open().missing() == [3]
    (tmp_path / "toy" / "mended").touch()
    SlurmEngine(FAST, tmp_path / "work").run(spec, recorder)
    assert spec.open().missing() == []
    assert attempts(tmp_path, 0) == 1


@pytest.mark.engine
@pytest.mark.parametrize("num_tasks", [999, 1000, 1001, 2000])
def test_more_tasks_than_elements_share_them(slurm, toy, tmp_path, recorder, num_tasks):
    spec = toy(num_tasks)
    config = SlurmConfig(memory="100M", poll_seconds=0.3, max_array_size=8)
    SlurmEngine(config, tmp_path / "work").run(spec, recorder)
    assert spec.open().missing() == []
    assert recorder.total.documents == num_tasks


@pytest.mark.engine
@pytest.mark.parametrize(("num_elements", "accepted"), [(999, True), (1000, True), (1001, True), (1002, False)])
def test_the_controller_takes_as_many_elements_as_we_believe(slurm, tmp_path, num_elements, accepted):
    script = tmp_path / "array.sbatch"
    script.write_text(sbatch_script(FAST, "toy", tmp_path, num_elements))
    done = subprocess.run(["sbatch", "--parsable", "--hold", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is accepted, done.stderr
    if accepted:
        subprocess.run(["scancel", done.stdout.strip()], check=True)


@pytest.mark.engine
def test_a_refusal_tells_slurms_own_words(slurm, toy, tmp_path, recorder):
    config = SlurmConfig(partition="nowhere", memory="100M", poll_seconds=0.3)
    with pytest.raises(EngineError, match=r"sbatch refused .*[Ii]nvalid partition"):
        SlurmEngine(config, tmp_path / "work").run(toy(2), recorder)


@pytest.mark.engine
def test_ctrl_c_cancels_the_job(slurm, toy, tmp_path, recorder):
    spec = toy(4, dict.fromkeys(range(4), "slow"))
    threading.Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(BuildInterruptedError, match="run the same command again"):
        SlurmEngine(FAST, tmp_path / "work").run(spec, recorder)
    wait_for_an_empty_queue()
    assert len(spec.open().missing()) == 4, "cancelled, not waited for"


@pytest.mark.engine
def test_an_error_while_waiting_cancels_the_job(slurm, toy, tmp_path, recorder):
    spec = toy(2, dict.fromkeys(range(2), "slow"))
    recorder.add = lambda counters: 1 / 0
    with pytest.raises(ZeroDivisionError):
        SlurmEngine(FAST, tmp_path / "work").run(spec, recorder)
    wait_for_an_empty_queue()
    assert len(spec.open().missing()) == 2, "cancelled, not waited for"


def wait_for_an_empty_queue():
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        queue = subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout
        if not queue.strip():
            break
        time.sleep(0.3)
    assert not queue.strip()
