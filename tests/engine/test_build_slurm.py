"""A whole build of real text on a real Slurm of two nodes: the same dataset as on this machine, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tokpipe.build import build
from tokpipe.engine.local import LocalConfig, LocalEngine
from tokpipe.engine.slurm import SlurmConfig, SlurmEngine, is_queued
from tokpipe.errors import TaskFailedError

pytestmark = pytest.mark.engine

FAST = SlurmConfig(memory="100M", time_limit="00:10:00", poll_seconds=0.5, max_array_size=4)
REPOSITORY = Path(__file__).parents[2]


def kill_node(slurm, node: str) -> None:
    """SIGKILL to the node's daemon and to every step that runs there, as a power cut does."""
    nodes = subprocess.run(["squeue", "-h", "-o", "%A %N"], capture_output=True, text=True, check=True).stdout
    jobs = {line.split()[0] for line in nodes.splitlines() if line.endswith(f" {node}")}
    os.kill(slurm.node_pid(node), signal.SIGKILL)
    for step in subprocess.run(["pgrep", "-f", r"slurmstepd: \["], capture_output=True, text=True, check=False).stdout.split():
        title = Path(f"/proc/{step}/cmdline").read_text()
        if any(f"[{job}." in title for job in jobs):
            subprocess.run(["pkill", "-KILL", "-P", step], check=False)
            os.kill(int(step), signal.SIGKILL)


def test_same_dataset_after_a_crash_a_kill_and_a_lost_node(slurm, real_config, real_id, faults, tmp_path):
    """In one build: a task raises once, one is killed, and the node of a third is lost in the middle of it."""
    faults({"count-1": "raise", "tokenize-2": "kill", "tokenize-0": "wait"})
    killed = []

    def watch():
        node = faults.wait_for("waiting-tokenize-0")
        kill_node(slurm, node)
        killed.append(node)

    killer = threading.Thread(target=watch)
    killer.start()
    try:
        report = build(real_config, engine=SlurmEngine(FAST, tmp_path / "jobs"))
    finally:
        killer.join()
        for node in killed:
            subprocess.run(["slurmd", "-N", node, "-f", str(slurm.folder / "slurm.conf")], check=True)
    assert report.dataset_id == real_id
    assert killed
    assert [faults.attempts(task) > 1 for task in ("count-1", "tokenize-2", "tokenize-0")] == [True] * 3


def test_a_task_that_always_fails_is_named_and_mended(slurm, real_config, real_id, damage, tmp_path):
    restore = damage("mix.jsonl")
    engine = SlurmEngine(replace(FAST, max_attempts=2), tmp_path / "jobs")
    with pytest.raises(
        TaskFailedError, match=r"1 of \d+ tasks failed(.|\n)*count-\d+ .*of mix: TooManyRejectsError(.|\n)*\(2 times\)"
    ):
        build(real_config, engine=engine)
    assert not (Path(real_config.out) / "dataset.json").exists()
    restore()
    assert build(real_config, engine=engine).dataset_id == real_id


def test_sigterm_ends_a_build_like_ctrl_c(slurm, real_config, faults, build_command):
    faults({"count-0": "wait"})
    command = [*build_command(real_config), "--engine", "slurm", "--slurm-memory", "100M"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            faults.wait_for("waiting-count-0")
        finally:
            process.terminate()
        _, words = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "is cancelled" in words and "run the same command again" in words
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout.strip():
            return
        time.sleep(0.3)
    pytest.fail("the job is still in the queue")


def make(target: str, sbatch: list[str], log: Path, **variables: str) -> str:
    """`make TARGET`, its job waited for; returns the job's log."""
    options = " ".join(["--parsable", "--partition=main", f"--output={log}", *sbatch])
    given = [f"{name}={value}" for name, value in {"SBATCH": options, "VENV": str(Path(sys.prefix)), **variables}.items()]
    done = subprocess.run(["make", "-s", target, *given], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # `sbatch --wait` looks ever more rarely.
    while is_queued(done.stdout.strip()):
        time.sleep(0.3)
    return log.read_text()


def test_cluster_build_makes_the_same_dataset_with_task_workers(slurm, real_config, real_id, tmp_path):
    """`make cluster-build`, recipes/slurm/build.sbatch: `srun` starts four processes on two nodes, which share one build."""
    words = make(
        "cluster-build",
        ["--nodes=2", "--ntasks-per-node=2", "--mem-per-cpu=50M"],
        tmp_path / "log",
        CORPUS=real_config.corpus.corpus,
        OUT=real_config.out,
        OPTIONS=f"--split-bytes {real_config.corpus.split_bytes} --vocab-size {real_config.train.vocab_size}",
    )
    assert f"Dataset {real_id}" in words


def test_verify_runs_through_the_engine(slurm, real_dataset, tmp_path):
    command = [sys.executable, "-m", "tokpipe", "verify", str(real_dataset), "--engine", "slurm", "--slurm-memory", "100M"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "every promise is kept" in done.stdout
    assert list((tmp_path / "tokpipe-jobs").glob("verify-0000/element-*.log"))


@pytest.mark.distributed
def test_cluster_train_runs_its_torchrun_line(slurm, real_dataset, tmp_path, monkeypatch):
    """`make cluster-train`, recipes/slurm/train-64xh100.sbatch, with what two nodes without GPUs have instead."""
    for name, value in {"PROCESSES": "4", "OMP_NUM_THREADS": "1", "MASTER": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    words = make(
        "cluster-train",
        ["--nodes=2", "--gpus-per-node=0", "--cpus-per-task=4", "--mem=500M"],
        tmp_path / "log",
        DATA=str(real_dataset),
        RUN=str(tmp_path / "run"),
        RECIPE="recipes/tiny-3d-cpu.toml",
        OPTIONS="--max-steps 2 --set schedule.warmup_steps=1 --set schedule.decay_steps=1",
    )
    assert "step 2/2" in words
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert max(record["step"] for record in records) == 2


@pytest.mark.slow
def test_the_whole_shared_corpus_gives_the_same_dataset(slurm, whole_config, tmp_path):
    with LocalEngine(LocalConfig()) as engine:
        expected = build(replace(whole_config, out=str(tmp_path / "local")), engine=engine).dataset_id
    assert build(whole_config, engine=SlurmEngine(FAST, tmp_path / "jobs")).dataset_id == expected
