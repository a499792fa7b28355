from __future__ import annotations

import math
import os
import signal
import threading
from types import SimpleNamespace

import pytest
import torch
from survivors import HANG, KILL, train_with_a_victim
from trainings import MODEL, Recorder, config_for, write_dataset

from tokpipe.errors import TrainerError, TrainingStoppedError
from tokpipe.trainer.data import DatasetSource
from tokpipe.trainer.failure import LossGuard, StopRequest, losses_by_replica, worst_replica
from tokpipe.trainer.mesh import ParallelConfig
from tokpipe.trainer.monitor import Beat, Monitor
from tokpipe.trainer.optimizer import OptimizerConfig
from tokpipe.trainer.parallelize import parallelize
from tokpipe.trainer.step import StepBatch, StepResult
from tokpipe.trainer.train import run_training
from tokpipe.trainer.world import agree_on_attempt


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data"))


def result(loss=1.0, norm=1.0, applied=True):
    return StepResult(loss=loss, grad_norm=norm, num_tokens=8, applied=applied)


@pytest.mark.parametrize("bad", [result(loss=math.nan), result(loss=math.inf), result(norm=math.nan), result(applied=False)])
def test_a_loss_that_is_not_finite_is_a_complaint(bad):
    assert "not finite" in LossGuard(max_jump=0.0).complaint(bad)


def test_a_jump_is_a_complaint_only_above_the_median_and_only_if_asked():
    for max_jump, expected in ((1.0, True), (3.0, False), (0.0, False)):
        guard = LossGuard(max_jump=max_jump)
        assert all(guard.complaint(result(loss=5.0 - step / 100)) is None for step in range(40))
        complaint = guard.complaint(result(loss=7.0))
        assert (complaint is not None) == expected
    guard = LossGuard(max_jump=1.0)
    assert guard.complaint(result(loss=50.0)) is None  # Too early to know what is usual.


def test_losses_by_replica_finds_the_share_that_spoils_the_loss():
    model = parallelize(MODEL, ParallelConfig(), OptimizerConfig(), mesh=None, device=torch.device("cpu"), seed=0)
    tokens = torch.randint(0, 300, (4, 9), generator=torch.Generator().manual_seed(0))
    batch = StepBatch(inputs=tokens[:, :-1], labels=tokens[:, 1:])
    own, other = losses_by_replica(model.eval_loss, batch, dp=2, dp_rank=0)
    assert own == pytest.approx(math.log(300), abs=0.3) and other == 0.0


@pytest.mark.parametrize(("losses", "worst"), [([1.0, 3.0, 2.0], 1), ([1.0, 3.0, math.nan], 2), ([math.inf, 9.0], 0)])
def test_worst_replica(losses, worst):
    assert worst_replica(losses) == worst


def test_a_loss_that_is_not_finite_stops_with_step_rank_positions_and_command(data, tmp_path, monkeypatch):
    config = config_for(tmp_path, data, run={"max_steps": 5}, checkpoint={"interval": 2})
    real, steps = parallel_train_step(), []

    def broken(self, batch):
        steps.append(1)
        if len(steps) == 4:
            return result(loss=math.nan, applied=False)
        return real(self, batch)

    monkeypatch.setattr("tokpipe.trainer.parallel_model.ParallelModel.train_step", broken)
    with pytest.raises(TrainingStoppedError) as stopped:
        run_training(config)
    message = str(stopped.value)
    assert "rank 0, step 3: loss nan" in message and "positions 0 to 15" in message
    assert f"tokpipe sample {data} --step 3 --rank 0 --dp 1 --seq-len 16 --global-batch-size 16 --seed 5" in message
    assert (tmp_path / "checkpoints" / "latest").read_text().strip() == "step-00000002"


def parallel_train_step():
    from tokpipe.trainer.parallel_model import ParallelModel

    return ParallelModel.train_step


class SignalAt(Recorder):
    """Sends this process a SIGTERM while it reads a step."""

    def __init__(self, inner, *, step):
        super().__init__(inner)
        self._at = step

    def next_step(self):
        if len(self.hashes) == self._at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().next_step()


def source_of(config):
    return DatasetSource(
        config.data, seed=config.run.seed, mesh=None, micro_batch_size=config.micro_batch_size, device=torch.device("cpu")
    )


def test_sigterm_saves_and_exits_and_the_same_command_goes_on(data, tmp_path):
    whole = run_training(config_for(tmp_path / "whole", data))
    config = config_for(tmp_path / "cut", data)
    cut = run_training(config, source=SignalAt(source_of(config), step=3))
    assert (cut.stopped_early, cut.last_step) == (True, 4)
    rest = run_training(config)
    assert (rest.first_step, rest.stopped_early) == (4, False)
    assert cut.losses + rest.losses == whole.losses


def test_stop_request_outside_the_main_thread_listens_to_nothing():
    seen = []

    def listen():
        with StopRequest().listening() as stop:
            seen.append(stop.requested)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [False]


class Store(dict):
    """A key-value store in memory."""

    def set(self, key, value):
        self[key] = value.encode()

    def get(self, key):
        return self[key]

    def check(self, keys):
        return all(key in self for key in keys)


def monitors(store, *, count=3, timeout=1.0):
    ended = []
    made = [
        Monitor(store, rank=rank, world_size=count, timeout_seconds=timeout, end_process=lambda text: ended.append(text))
        for rank in range(count)
    ]
    return made, ended


def explain_all(made, ranks):
    """What each of some ranks says when its collective fails, at the same time."""
    texts = {}
    threads = [
        threading.Thread(target=lambda rank=rank: texts.update({rank: made[rank].explain(RuntimeError("timed out"))}))
        for rank in ranks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


def test_monitor_names_a_lost_rank():
    made, _ = monitors(Store())
    for monitor in made[:2]:
        monitor.start()
        monitor.mark(4, "step")
    texts = explain_all(made, [0, 1])
    for monitor in made[:2]:
        monitor.close()
    assert all(text.startswith("rank 2 is lost: no sign of life") for text in texts.values())
    assert "rank 1 failed at step 4 (step): timed out" in texts[1]


def test_monitor_names_a_stuck_rank_and_ends_it():
    made, ended = monitors(Store())
    for monitor in made:
        monitor.start()
        monitor.mark(4, "step")
    made[1].mark(4, "data")
    threading.Event().wait(1.1)
    texts = explain_all(made, [0, 2])
    threading.Event().wait(2.5)
    for monitor in made:
        monitor.close()
    assert texts[0].startswith("rank 1 is stuck: alive, but still at step 4 (data) when the others gave up")
    assert any("rank 1 ends because rank 1 is stuck" in text for text in ended)


def test_monitor_waits_for_reports_that_are_under_way_before_it_blames(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("tokpipe.trainer.monitor.time", SimpleNamespace(monotonic=lambda: now[0]))
    store = Store()
    made, _ = monitors(store, timeout=10.0)  # looks every half second
    beats = {rank: Beat(1, 4, "step", 11.0) for rank in range(3)}
    store.set("monitor/failed/0", "rank 0 failed")
    assert made[0]._stuck(beats) is None
    store.set("monitor/failed/2", "rank 2 failed")
    now[0] += 1.0
    assert made[0]._stuck(beats).startswith("rank 1 is stuck")


@pytest.mark.parametrize(("phase", "is_stuck"), [("step", True), ("save", False), ("start", False)])
def test_monitor_lets_all_ranks_read_or_write_a_checkpoint_for_as_long_as_it_takes(phase, is_stuck):
    made, ended = monitors(Store(), timeout=0.5)
    for monitor in made:
        monitor.start()
        monitor.mark(4, phase)
    threading.Event().wait(3.5)
    for monitor in made:
        monitor.close()
    assert bool(ended) == is_stuck


def test_a_validation_that_takes_longer_than_the_timeout_shows_progress(data, tmp_path, monkeypatch):
    marks = []
    mark = Monitor.mark
    monkeypatch.setattr(Monitor, "mark", lambda self, step, phase: (marks.append(phase), mark(self, step, phase))[1])
    run_training(config_for(tmp_path, data, run={"max_steps": 1}, data={"global_batch_size": 4}))
    assert marks.count("validate") > 4  # one a batch, over both sources


def test_monitor_without_a_store_says_what_it_knows():
    assert Monitor(None, rank=0, world_size=1, timeout_seconds=1).explain(RuntimeError("a\nb")) == (
        "rank 0 failed at step 0 (start): a"
    )


def test_monitor_reports_a_store_that_is_gone():
    class Gone(Store):
        def check(self, keys):
            raise RuntimeError("connection reset")

    monitor = Monitor(Gone(), rank=1, world_size=2, timeout_seconds=1)
    assert monitor.explain(RuntimeError("x")).startswith("the store is gone, so its host ended")


def test_beat_survives_the_store():
    beat = Beat(3, 17, "validate", 1.5)
    assert Beat.unpack(beat.pack().encode()) == beat


@pytest.mark.distributed
@pytest.mark.parametrize(("how", "verdict"), [(KILL, "rank 1 is lost"), (HANG, "rank 1 is stuck")])
def test_a_rank_that_dies_or_hangs_ends_the_job_and_is_named(data, tmp_path, how, verdict):
    """Three processes; every one ends within twice the timeout of 6 s (and what this machine takes to start them)."""
    exit_codes, messages = train_with_a_victim(config_for(tmp_path, data, failure={"timeout_seconds": 6.0}), how)
    assert all(code not in (0, None) for code in exit_codes)
    assert any(verdict in text for text in messages), messages


def test_ranks_agree_on_an_attempt_and_never_on_an_earlier_one():
    """One store over three attempts, with what died in the first and second still in it."""
    store, attempts = Store(), []

    def arrive(rank, names):
        names[rank] = agree_on_attempt(store, rank=rank, world_size=3, timeout_seconds=20)

    for order in ([2, 1, 0], [0, 1, 2], [1, 0, 2]):
        names = {}
        threads = [threading.Thread(target=arrive, args=(rank, names)) for rank in order]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        attempts.append(set(names.values()))
    assert all(len(names) == 1 for names in attempts)
    assert len(set.union(*attempts)) == 3


def test_ranks_that_do_not_arrive_are_said():
    with pytest.raises(TrainerError, match="rank 0: not all of 2 ranks arrived within"):
        agree_on_attempt(Store(), rank=0, world_size=2, timeout_seconds=0.1)
