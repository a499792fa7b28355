from __future__ import annotations

import json
import shutil

import pytest
import torch
from trainings import config_for, recorded_run, write_dataset

from tokpipe.errors import StateMismatchError, TrainerError
from tokpipe.trainer import describe
from tokpipe.trainer.checkpoint import Checkpoints, latest_checkpoint, read_state
from tokpipe.trainer.config import CheckpointConfig
from tokpipe.trainer.train import run_training
from tokpipe.trainer.world import World

ALONE = World(rank=0, world_size=1, device=torch.device("cpu"), store=None, control_group=None, checkpoint_group=None)
THREE_D = {"pp": 2, "tp": 2, "dp": 2, "zero": 1, "num_micro_batches": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data"))


def global_batches(ranks, dp):
    """Hashes of each step's whole batch, from rank results in which `dp` ranks of tensor rank 0 and stage 0 come first."""
    return [[row for rank in dp for row in ranks[rank][1][step]] for step in range(len(ranks[0][1]))]


@pytest.mark.distributed
def test_resume_on_any_layout_equals_never_having_stopped(gang, data, tmp_path):
    """Saved at step 3 on pp2 x tp2 x dp2 while training goes on; losses within 2e-6, batches identical."""
    first = gang.run(recorded_run, config_for(tmp_path / "first", data, parallel=THREE_D), timeout=240)
    losses, batches = first[0][0], global_batches(first, dp=(0, 2))
    assert len(losses) == 6
    layouts = {
        "dp8 ZeRO-3": ({"dp": 8, "zero": 3}, range(8)),
        "dp4 x tp2": ({"dp": 4, "tp": 2, "zero": 2}, (0, 2, 4, 6)),
        "one process": ({}, (0,)),
    }
    for name, (parallel, dp) in layouts.items():
        out = tmp_path / name
        _copy_run_at(tmp_path / "first", out, step=3)
        config = config_for(out, data, parallel=parallel)
        ranks = [recorded_run(config)] if name == "one process" else gang.run(recorded_run, config, timeout=240)
        assert global_batches(ranks, dp) == batches[3:], name
        assert ranks[0][0] == pytest.approx(losses[3:], abs=2e-6), name


def _copy_run_at(run, out, *, step):
    """A run's folder as it was after `step` steps."""
    name = f"step-{step:08d}"
    shutil.copytree(run / "checkpoints" / name, out / "checkpoints" / name)
    (out / "checkpoints" / "latest").write_text(name)


def test_resume_in_one_process_is_bitwise_exact(data, tmp_path):
    whole = recorded_run(config_for(tmp_path / "whole", data))
    recorded_run(config_for(tmp_path / "cut", data, run={"max_steps": 4}))
    rest = recorded_run(config_for(tmp_path / "cut", data))
    assert rest == (whole[0][4:], whole[1][4:])


def test_a_finished_run_does_nothing(data, tmp_path):
    run_training(config_for(tmp_path, data))
    again = run_training(config_for(tmp_path, data))
    assert (again.first_step, again.last_step, again.losses) == (6, 6, ())
    assert describe(again)["loss"] is None  # not NaN, which is no JSON


@pytest.mark.parametrize("asynchronous", [True, False])
def test_latest_moves_only_after_everything_is_written_and_old_ones_go(tmp_path, asynchronous):
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep=2, asynchronous=asynchronous), ALONE)
    weights = {"weights.a": torch.zeros(3)}
    for step in (1, 2, 3):
        weights["weights.a"].fill_(step)
        checkpoints.save(step, weights, {"loader": step})
        weights["weights.a"].fill_(-1)  # Training goes on: what is saved must be what was there.
        before = latest_checkpoint(tmp_path)
        assert before is None or before.name <= f"step-{step:08d}"
    checkpoints.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000002", "step-00000003"]
    loaded = {"weights.a": torch.zeros(3)}
    state = checkpoints.load(latest_checkpoint(tmp_path), loaded)
    assert loaded["weights.a"].tolist() == [3, 3, 3] and state["loader"] == 3


def test_a_half_written_checkpoint_is_not_taken_and_is_overwritten(tmp_path):
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(asynchronous=False), ALONE)
    checkpoints.save(1, {"w": torch.ones(1)}, {})
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002" / "__5_0.distcp").write_bytes(b"half")
    assert latest_checkpoint(tmp_path).name == "step-00000001"
    checkpoints.save(2, {"w": torch.ones(1)}, {})
    assert not (tmp_path / "step-00000002" / "__5_0.distcp").exists()
    assert latest_checkpoint(tmp_path).name == "step-00000002"


def test_a_half_written_checkpoint_is_not_among_those_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(asynchronous=False, keep=2), ALONE)
    checkpoints.save(1, {"w": torch.ones(1)}, {})
    (tmp_path / "step-00000002").mkdir()
    (tmp_path / "step-00000002" / "__5_0.distcp").write_bytes(b"half")
    checkpoints.save(3, {"w": torch.ones(1)}, {})
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000001", "step-00000003"]


def test_latest_names_a_missing_checkpoint(tmp_path):
    (tmp_path / "latest").write_text("step-00000009\n")
    with pytest.raises(TrainerError, match=r"step-00000009, which is not complete. Complete ones: none"):
        latest_checkpoint(tmp_path)


def test_a_write_that_fails_names_rank_and_folder(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(), ALONE)
    checkpoints.save(1, {"w": torch.ones(1)}, {})
    checkpoints.wait()
    monkeypatch.setattr("torch.distributed.checkpoint.filesystem.FileSystemWriter.write_data", _fail)
    checkpoints.save(2, {"w": torch.ones(1)}, {})
    with pytest.raises(TrainerError, match=r"rank 0: the checkpoint .*step-00000002 could not be written"):
        checkpoints.wait()
    assert latest_checkpoint(tmp_path).name == "step-00000001"


def _fail(*args, **kwargs):
    raise OSError("No space left on device")


def test_a_damaged_checkpoint_says_what_to_do(tmp_path):
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(asynchronous=False), ALONE)
    checkpoints.save(1, {"w": torch.ones(1)}, {})
    with pytest.raises(TrainerError, match="write the name of an older checkpoint"):
        checkpoints.load(tmp_path / "step-00000001", {"w": torch.ones(1), "other": torch.ones(2)})
    (tmp_path / "step-00000001" / "trainer.json").write_text("{")
    with pytest.raises(TrainerError, match=r"is .* a checkpoint of `tokpipe train`"):
        read_state(tmp_path / "step-00000001")
    (tmp_path / "step-00000001" / "trainer.json").write_text(json.dumps({"version": 7}))
    with pytest.raises(TrainerError, match="version 7, but this tokpipe reads version 1"):
        read_state(tmp_path / "step-00000001")


def test_a_checkpoint_of_another_run_is_refused_naming_the_differences(data, tmp_path, caplog):
    run_training(config_for(tmp_path, data, run={"max_steps": 1}))
    left = {name: (tmp_path / name).read_text() for name in ("recipe.toml", "metrics.jsonl")}
    with pytest.raises(TrainerError, match=r"model.ffn_size was 64, is 96; run.seed was 5, is 6"):
        run_training(config_for(tmp_path, data, model={"ffn_size": 96}, run={"seed": 6}))
    with pytest.raises(StateMismatchError):
        run_training(config_for(tmp_path, data, data={"seq_len": 8}))
    assert left == {name: (tmp_path / name).read_text() for name in left}  # A run that is refused overwrites nothing.
    with caplog.at_level("INFO"):
        run_training(config_for(tmp_path, data, optimizer={"lr": 1e-3}, run={"max_steps": 2}))
    assert "optimizer.lr" in caplog.text and "run.max_steps 1 -> 2" in caplog.text
