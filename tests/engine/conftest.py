"""A toy task list on disk, and real servers: a Slurm of two virtual nodes, a Ray cluster of two nodes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from tokpipe.engine.base import Counters, TaskSpec

HERE = Path(__file__).parent
MINI_SLURM = Path(__file__).parents[2] / "scripts" / "mini_slurm.sh"


class Recorder:
    """A progress sink that remembers."""

    def __init__(self):
        self.stages, self.total, self.finished = [], Counters(), 0

    def start(self, stage, total_bytes, done_bytes):
        self.stages.append((stage, total_bytes, done_bytes))

    def add(self, counters):
        self.total += counters

    def finish(self):
        self.finished += 1


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A function that makes a toy task list and returns its spec; workers find the module through PYTHONPATH."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    monkeypatch.syspath_prepend(str(HERE))

    def make(num: int, behaviour: dict[int, str] | None = None, stage: str = "toy") -> TaskSpec:
        out = tmp_path / "toy"
        (out / "results").mkdir(parents=True)
        (out / "behaviour.json").write_text(json.dumps({"num": num, "behaviour": behaviour or {}}))
        return TaskSpec("toy_tasks:open_tasks", str(out), stage)

    return make


def free_ports(num: int) -> int:
    """The first of `num` neighbouring ports that are free now."""
    for base in range(17_000, 30_000, num + 10):
        sockets = []
        try:
            for port in range(base, base + num):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
            return base
        except OSError:
            continue
        finally:
            for open_socket in sockets:
                open_socket.close()
    raise RuntimeError("no free ports")


class MiniSlurm:
    """A controller and two nodes on this machine."""

    def __init__(self):
        # Not under pytest's tmp_path: a socket's path may have 107 characters at most.
        self.folder = Path(tempfile.mkdtemp(prefix="tokpipe-slurm-"))
        self.environment = {**os.environ, "BASE_PORT": str(free_ports(3)), "CPUS": "4", "MAX_ARRAY": "1001"}

    def up(self) -> None:
        subprocess.run(["bash", str(MINI_SLURM), "up", str(self.folder)], check=True, env=self.environment, capture_output=True)

    def down(self) -> None:
        subprocess.run(["bash", str(MINI_SLURM), "down", str(self.folder)], check=True, env=self.environment, capture_output=True)
        shutil.rmtree(self.folder)

    def node_pid(self, node: str) -> int:
        return int((self.folder / "run" / f"slurmd.{node}.pid").read_text())


@pytest.fixture(scope="session")
def slurm_cluster():
    if shutil.which("slurmctld") is None or os.geteuid() != 0:
        pytest.skip("needs Slurm (apt-get install slurm-wlm munge) and root to start a controller and two nodes")
    cluster = MiniSlurm()
    cluster.up()
    yield cluster
    cluster.down()


@pytest.fixture
def slurm(slurm_cluster, monkeypatch):
    """The cluster, with SLURM_CONF set for this test."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.folder / "slurm.conf"))
    return slurm_cluster
