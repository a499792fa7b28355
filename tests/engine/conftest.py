"""A toy task list on disk, and real servers: a Slurm of two virtual nodes, a Ray cluster of two nodes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tokpipe.build import BuildConfig, build, tasks
from tokpipe.corpus import CorpusConfig
from tokpipe.engine.base import Counters, TaskSpec
from tokpipe.engine.local import LocalConfig, LocalEngine
from tokpipe.shards import read_manifest
from tokpipe.tokenizer import TrainConfig

HERE = Path(__file__).parent
TOKPIPE = [sys.executable, "-m", "tokpipe.cli.main"]
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


@pytest.fixture
def ray_cluster(toy, monkeypatch):
    """A head without CPUs and two nodes with two each. `toy` first: the nodes must inherit its PYTHONPATH."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_health_check_initial_delay_ms", "500")
    monkeypatch.setenv("RAY_health_check_period_ms", "300")
    monkeypatch.setenv("RAY_health_check_timeout_ms", "500")
    monkeypatch.setenv("RAY_health_check_failure_threshold", "2")
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes.workers = [nodes.add_node(num_cpus=2) for _ in range(2)]
    nodes.wait_for_nodes()
    yield nodes
    ray.shutdown()
    with contextlib.suppress(Exception):  # a node that the test killed
        nodes.shutdown()


@pytest.fixture(scope="session")
def real_corpus(tmp_path_factory, shared_corpus) -> Path:
    """Two of the shared corpus's files, unpacked, so that they can be cut into tasks: 14 MB."""
    folder = tmp_path_factory.mktemp("real")
    for name in ("mix", "other_devanagari"):
        with pa.input_stream(str(shared_corpus / f"{name}.jsonl.zst"), compression="zstd") as packed:
            (folder / f"{name}.jsonl").write_bytes(packed.read())
    return folder


def config_of(corpus: Path, out: Path, **train) -> BuildConfig:
    return BuildConfig(corpus=CorpusConfig(corpus=str(corpus), split_bytes=2_000_000), out=str(out), train=TrainConfig(**train))


@pytest.fixture
def real_config(real_corpus, tmp_path) -> BuildConfig:
    return config_of(real_corpus, tmp_path / "data", vocab_size=1200)


@pytest.fixture
def whole_config(shared_corpus, tmp_path) -> BuildConfig:
    return config_of(shared_corpus, tmp_path / "data")


@pytest.fixture(scope="session")
def real_dataset(real_corpus, tmp_path_factory) -> Path:
    """What this machine makes of the real text, in worker processes."""
    out = tmp_path_factory.mktemp("local") / "data"
    with LocalEngine(LocalConfig(workers=2)) as engine:
        build(config_of(real_corpus, out, vocab_size=1200), engine=engine)
    return out


@pytest.fixture
def real_id(real_dataset) -> str:
    return read_manifest(real_dataset).dataset_id


class Faults:
    """What goes wrong in the tasks of this test, and what they left behind: see faulty_build.py."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir()

    def __call__(self, faults: dict[str, str]) -> None:
        (self.folder / "faults.json").write_text(json.dumps(faults))

    def wait_for(self, name: str, seconds: float = 270) -> str:
        """Wait for a mark; returns what is in it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                if text := (self.folder / name).read_text():
                    return text
            time.sleep(0.05)
        raise TimeoutError(f"{name} did not come in {seconds} s")

    def attempts(self, task: str) -> int:
        return (self.folder / "attempts").read_text().split().count(task)


@pytest.fixture
def faults(tmp_path, monkeypatch) -> Faults:
    """Call it with {task: fault}; builds of this process and their workers then use the faulty tasks."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("FAULTS", str(tmp_path / "faults"))
    monkeypatch.setattr(tasks, "OPENER", "faulty_build:open_tasks")
    return Faults(tmp_path / "faults")


@pytest.fixture
def build_command():
    """The command line of a config; its tasks are the faulty ones if the test has faults."""

    def command(config: BuildConfig) -> list[str]:
        program = [sys.executable, str(HERE / "faulty_build.py")] if "FAULTS" in os.environ else TOKPIPE
        options = ["--split-bytes", str(config.corpus.split_bytes), "--vocab-size", str(config.train.vocab_size)]
        return [*program, "build", "--corpus", config.corpus.corpus, "--out", config.out, *options]

    return command


@pytest.fixture
def damage(real_corpus):
    """A function that makes a file unreadable without changing what a listing shows of it; returns the one that mends it."""
    restores = []

    def make(name: str):
        path = real_corpus / name
        whole, stamp = path.read_bytes(), path.stat()

        def write(data: bytes) -> None:
            path.write_bytes(data)
            os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

        write(b"{\n" * 50_000 + whole[100_000:])
        restores.append(lambda: write(whole))
        return restores[-1]

    yield make
    for restore in restores:
        restore()
