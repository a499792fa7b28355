from __future__ import annotations

import json
import logging
import sys

import pytest
import torch

from tokpipe.errors import MissingExtraError, TrainerError
from tokpipe.trainer.metrics import JsonLines, Metrics, Speedometer, TensorBoard, memory_bytes, read_metrics
from tokpipe.trainer.model import ModelConfig
from tokpipe.trainer.plot import plot_losses
from tokpipe.trainer.step import StepResult

MODEL = ModelConfig(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=4, ffn_size=128, vocab_size=100)
CPU = torch.device("cpu")
RESULT = StepResult(loss=2.5, grad_norm=1.25, num_tokens=64, applied=True)


class Memory(list):
    """A sink that keeps records."""

    def write(self, record):
        self.append(dict(record))

    def close(self):
        self.append("closed")


def metrics_with(sinks, **changes):
    speedometer = (
        Speedometer(flops_each=100.0, num_gpus=2, peak=None) if "speedometer" not in changes else changes.pop("speedometer")
    )
    return Metrics(sinks=sinks, speedometer=speedometer, device=CPU, max_steps=10, interval=4, **changes)


def test_one_record_per_interval_with_speed_over_its_steps(caplog):
    memory = Memory()
    metrics = metrics_with([memory])
    with caplog.at_level(logging.INFO):
        for step in range(1, 11):
            metrics.step_done(step, RESULT, tokens=64, lr=1e-3, seconds=0.5, wait_seconds=0.05)
        metrics.close()
    assert [record["step"] for record in memory[:-1]] == [1, 4, 8, 10]
    assert all(record["tokens_per_second"] == pytest.approx(128) for record in memory[:-1])
    assert all(record["data_wait"] == pytest.approx(0.1) for record in memory[:-1])
    assert memory[-1] == "closed"
    assert "step  4/10 | loss 2.5000 | lr 1.00e-03 | grad norm 1.250 | 128 tokens/s | data wait 10 %" in caplog.text


def test_ranks_without_sinks_are_silent(caplog):
    metrics = metrics_with([])
    with caplog.at_level(logging.INFO):
        metrics.step_done(4, RESULT, tokens=64, lr=1e-3, seconds=0.5, wait_seconds=0.0)
        metrics.validated(4, {"all": 1.0})
    assert not caplog.records


def test_mfu_counts_all_gpus_and_is_said(caplog):
    memory = Memory()
    metrics = metrics_with([memory], speedometer=Speedometer(flops_each=100.0, num_gpus=2, peak=12_800.0))
    with caplog.at_level(logging.INFO):
        metrics.step_done(4, RESULT, tokens=64, lr=1e-3, seconds=0.5, wait_seconds=0.0)
    assert memory[0]["mfu"] == pytest.approx(0.5) and "mfu 50.0%" in caplog.text


def test_speedometer_counts_model_flops():
    speedometer = Speedometer.of(MODEL, seq_len=32, world_size=4, device=CPU)
    assert speedometer.flops_each == 6 * MODEL.num_parameters + 12 * 2 * 64 * 32
    assert speedometer.peak is None and speedometer.num_gpus == 4


def test_json_lines_drop_what_a_lost_future_wrote(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"kind": "train", "step": step, "loss": 1.0}) for step in (1, 2, 3)]
    path.write_text("\n".join(lines) + '\n{"kind": "tra')
    sink = JsonLines(path, resume_step=2)
    sink.write({"kind": "train", "step": 3, "loss": 0.5})
    sink.close()
    assert [(record["step"], record["loss"]) for record in read_metrics(path)] == [(1, 1.0), (2, 1.0), (3, 0.5)]


def test_a_broken_line_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "tra\n{"kind": "train", "step": 1}\n')
    with pytest.raises(TrainerError, match="line 1 is not JSON"):
        read_metrics(path)


def test_tensorboard_gets_scalars(tmp_path):
    pytest.importorskip("tensorboard")
    sink = TensorBoard(tmp_path)
    sink.write({"kind": "train", "step": 3, "loss": 0.5})
    sink.close()
    assert any(path.name.startswith("events") for path in tmp_path.iterdir())


def test_tensorboard_names_its_extra_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"tokpipe\[tensorboard\]"):
        TensorBoard(tmp_path)


def test_plot_draws_training_validation_and_reference(tmp_path):
    records = [{"kind": "train", "step": step, "loss": 3.0 / step} for step in range(1, 5)]
    records.append({"kind": "validation", "step": 4, "loss/hi": 0.8, "loss/all": 0.9})
    plot_losses(records, tmp_path / "loss.png", reference={"unigram": 2.0})
    plot_losses([], tmp_path / "empty.png")
    assert (tmp_path / "loss.png").stat().st_size > (tmp_path / "empty.png").stat().st_size > 0


def test_memory_bytes_of_this_process():
    assert memory_bytes(CPU) > 50e6
