"""The Ray engine on a real cluster of two nodes on this machine."""

from __future__ import annotations

import os
import sys

import pytest

from tokpipe.engine.base import Counters
from tokpipe.engine.ray import RayConfig, RayEngine
from tokpipe.errors import EngineError, MissingExtraError, TaskFailedError

# Ray itself leaves sockets and files open and warns of its own future; none of it is ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.engine
def test_tasks_that_raise_or_are_killed_run_again(ray_cluster, toy, tmp_path, recorder):
    spec = toy(12, {2: "raise_once", 5: "kill_once"})
    RayEngine(RayConfig(address=ray_cluster.address, window=3)).run(spec, recorder)
    assert spec.open().missing() == []
    tries = (tmp_path / "toy" / "attempts").read_text().split()
    assert [tries.count(str(i)) for i in (2, 5, 7)] == [2, 2, 1]
    assert recorder.stages == [("toy", sum(range(13)), 0)]
    assert recorder.total == Counters(documents=12, tokens=120, text_bytes=sum(range(13)))


@pytest.mark.engine
def test_a_task_that_always_fails_is_named_and_the_rest_is_done(ray_cluster, toy, tmp_path, recorder):
    spec = toy(6, {3: "raise"})
    engine = RayEngine(RayConfig(address=ray_cluster.address))
    with pytest.raises(
        TaskFailedError, match=r"1 of 6 tasks failed(.|\n)*toy-00003: ValueError: task 3 always fails.*\(3 times\)"
    ):
        engine.run(spec, recorder)
    assert spec.open().missing() == [3]
    (tmp_path / "toy" / "mended").touch()
    engine.run(spec, recorder)
    assert spec.open().missing() == []


@pytest.mark.engine
def test_a_local_cluster_is_started_and_ended(toy, recorder, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    spec = toy(3)
    engine = RayEngine(RayConfig(address="local"))
    engine.run(spec, recorder)
    engine.close()
    import ray

    assert spec.open().missing() == []
    assert not ray.is_initialized()


@pytest.mark.engine
def test_an_address_where_nothing_answers_is_an_error(toy, recorder):
    with pytest.raises(EngineError, match="no Ray cluster answers"):
        RayEngine(RayConfig(address="127.0.0.1:9")).run(toy(1), recorder)


@pytest.mark.engine
def test_auto_does_not_wait_for_a_ray_address_where_nothing_answers(toy, recorder, monkeypatch):
    """Ray itself would try for five minutes, and then a cluster of this machine alone would be started in silence."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(EngineError, match=r"no Ray cluster answers at '127\.0\.0\.1:9'"):
        RayEngine(RayConfig(address="auto")).run(toy(1), recorder)


def test_a_missing_extra_says_how_to_install_it(toy, recorder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tokpipe\[ray\]'"):
        RayEngine(RayConfig()).run(toy(1), recorder)
    assert os.environ["PYTHONPATH"]
