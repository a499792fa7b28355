"""A whole build of real text on a real Ray cluster of two nodes: the same dataset as on this machine, whatever is killed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tokpipe.build import build
from tokpipe.engine.ray import RayConfig, RayEngine
from tokpipe.errors import TaskFailedError

# Ray itself leaves sockets and files open and warns of its own future; none of it is ours to mend.
pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def faulty_cluster(faults, ray_cluster):
    """The cluster of nodes that inherited the environment of the faults."""
    return ray_cluster


def test_same_dataset_after_a_crash_a_kill_and_a_lost_node(faulty_cluster, real_config, real_id, faults):
    """In one build: a task raises once, the worker of one is killed, and the node of a third is lost in the middle of it."""
    faults({"count-1": "raise", "count-2": "kill", "tokenize-0": "wait"})

    def lose_node():
        raylet = int(faults.wait_for("waiting-tokenize-0"))
        node = next(n for n in faulty_cluster.workers if raylet in {info.process.pid for info in n.all_processes["raylet"]})
        faulty_cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=lose_node)
    killer.start()
    try:
        report = build(real_config, engine=RayEngine(RayConfig(address=faulty_cluster.address)))
    finally:
        killer.join()
    assert report.dataset_id == real_id
    assert [faults.attempts(task) > 1 for task in ("count-1", "count-2", "tokenize-0")] == [True] * 3
    assert faults.attempts("tokenize-1") == 1


def test_a_task_that_always_fails_is_named_and_mended(ray_cluster, real_config, real_id, damage):
    restore = damage("mix.jsonl")
    engine = RayEngine(RayConfig(address=ray_cluster.address, max_attempts=2))
    with pytest.raises(
        TaskFailedError, match=r"1 of \d+ tasks failed(.|\n)*count-\d+ .*of mix: TooManyRejectsError(.|\n)*\(2 times\)"
    ):
        build(real_config, engine=engine)
    assert not (Path(real_config.out) / "dataset.json").exists()
    restore()
    assert build(real_config, engine=engine).dataset_id == real_id
