from __future__ import annotations

import json
import logging
import math
import shlex

import pytest
import torch
from trainings import EOS, config_for, write_dataset

from tokpipe.cli.layout_options import parse_weights
from tokpipe.errors import LayoutError, TrainerError
from tokpipe.shards import TokenizerEntry
from tokpipe.trainer import Launch, describe, run_training
from tokpipe.trainer.loop import sample_command
from tokpipe.trainer.validate import held_out_batches, validate
from tokpipe.trainer.world import choose_device


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    """(summary, folder) of a run of 40 steps that repeats its phrases."""
    out = tmp_path_factory.mktemp("run")
    config = config_for(out, data, run={"max_steps": 40, "log_interval": 10, "eval_interval": 20}, metrics={"plot": True})
    return run_training(config), out


def test_the_loss_falls_and_is_validated_per_source(finished):
    summary, _ = finished
    assert summary.losses[0] == pytest.approx(math.log(300), abs=0.1)
    assert summary.loss < summary.losses[0] - 0.5
    assert set(summary.validation) == {"en", "hi", "all"}
    assert min(summary.validation.values()) < summary.validation["all"] < max(summary.validation.values())


def test_a_run_leaves_recipe_metrics_plot_and_checkpoint(finished):
    summary, out = finished
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    train = [record for record in records if record["kind"] == "train"]
    assert [record["step"] for record in train] == [1, 10, 20, 30, 40]
    assert set(train[0]) >= {"loss", "lr", "grad_norm", "tokens_per_second", "memory_bytes", "data_wait"}
    assert train[-1]["loss"] == summary.loss and "mfu" not in train[-1]
    validations = [record for record in records if record["kind"] == "validation"]
    assert [record["step"] for record in validations] == [20, 40]
    assert validations[-1]["loss/all"] == summary.validation["all"]
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "checkpoints" / "latest").read_text().strip() == "step-00000040"
    assert "[optimizer]" in (out / "recipe.toml").read_text()


def test_runs_with_the_same_seed_are_bitwise_equal_and_with_another_are_not(data, tmp_path):
    one, two = (run_training(config_for(tmp_path / name, data, run={"max_steps": 2})) for name in ("one", "two"))
    other = run_training(config_for(tmp_path / "other", data, run={"max_steps": 2, "seed": 6}))
    assert one.losses == two.losses != other.losses


def test_gradient_accumulation_changes_nothing(data, tmp_path):
    whole = run_training(config_for(tmp_path / "whole", data, run={"max_steps": 3}))
    pieces = run_training(config_for(tmp_path / "pieces", data, run={"max_steps": 3}, parallel={"num_micro_batches": 8}))
    assert pieces.losses == pytest.approx(whole.losses, abs=2e-6)


def test_bf16_keeps_close_to_fp32(data, tmp_path):
    fp32 = run_training(config_for(tmp_path / "fp32", data, run={"max_steps": 3}))
    bf16 = run_training(config_for(tmp_path / "bf16", data, run={"max_steps": 3}, parallel={"dtype": "bf16"}))
    assert bf16.losses != fp32.losses
    assert bf16.losses == pytest.approx(fp32.losses, abs=0.03)


def test_document_mask_trains(data, tmp_path):
    summary = run_training(config_for(tmp_path, data, run={"max_steps": 2}, data={"document_mask": True}))
    assert math.isfinite(summary.loss)


def test_validation_is_the_same_however_it_is_cut(data, tmp_path):
    config = config_for(tmp_path, data)
    sources = held_out_batches(config.data, mesh=None, micro_batch_size=4)
    seen = {name: sum(int((b.labels != -100).sum()) for b in batches()) for name, batches in sources.items()}

    def eval_loss(batch):
        from tokpipe.trainer.step import EvalResult

        tokens = int((batch.labels != -100).sum())
        return EvalResult(loss_sum=2.0 * tokens, num_tokens=tokens)

    assert validate(eval_loss, sources) == {"en": 2.0, "hi": 2.0, "all": 2.0}
    assert validate(eval_loss, sources, max_batches=1) == {"en": 2.0, "hi": 2.0, "all": 2.0}
    assert validate(eval_loss, {}) == {}
    assert all(count > 0 for count in seen.values())


def test_a_source_too_small_to_validate_is_said_not_fatal(data, tmp_path, caplog):
    config = config_for(tmp_path, data, data={"seq_len": 500})
    with caplog.at_level(logging.INFO):
        sources = held_out_batches(config.data, mesh=None, micro_batch_size=1)
    assert validate(lambda batch: pytest.fail("no batch expected"), sources) == {}
    assert "held-out" in caplog.text


def test_a_layout_for_other_processes_is_refused(data, tmp_path):
    with pytest.raises(LayoutError, match="needs 2 ranks, but 1 were started"):
        run_training(config_for(tmp_path, data, parallel={"dp": 2}))


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused(tmp_path):
    tokenizer = TokenizerEntry(fingerprint="cd" * 8, vocab_size=400, eos_id=EOS)
    data = write_dataset(tmp_path / "data", tokenizer=tokenizer)
    with pytest.raises(TrainerError, match=r"model.vocab_size 300 is smaller than the 400 pieces"):
        run_training(config_for(tmp_path / "run", data))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_is_refused_where_there_is_none():
    assert choose_device("auto", 0) == torch.device("cpu")
    with pytest.raises(TrainerError, match="PyTorch sees no CUDA GPU"):
        choose_device("cuda", 0)


def test_one_process_in_a_process_group_trains_like_one_without(data, tmp_path, monkeypatch):
    """As under `torchrun --nproc-per-node 1`: store, monitor and control messages are all in use."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)
    alone = run_training(config_for(tmp_path / "alone", data, run={"max_steps": 3}))
    grouped = run_training(
        config_for(tmp_path / "grouped", data, run={"max_steps": 3}), launch=Launch(rank=0, world_size=1, distributed=True)
    )
    assert grouped.losses == alone.losses
    assert not torch.distributed.is_initialized()


def test_describe_is_plain_json(finished):
    assert json.loads(json.dumps(describe(finished[0])))["last_step"] == 40


def test_sample_command_gives_every_option(data, tmp_path):
    config = config_for(tmp_path, "my-data", data={"weights": {"hi": 0.75, "en": 0.25}})
    assert sample_command(config, step=7, dp_rank=0) == (
        "tokpipe sample my-data --step 7 --rank 0 --dp 1 --seq-len 16 --global-batch-size 16 --seed 5 --weights hi=0.75,en=0.25"
    )
    odd = sample_command(config_for(tmp_path, "my data", data={"weights": {"hi": 1 / 3, "en": 2 / 3}}), step=7, dp_rank=0)
    given = shlex.split(odd)
    assert given[2] == "my data" and parse_weights(given[-1]) == {"hi": 1 / 3, "en": 2 / 3}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_trains_in_bf16_and_reports_mfu(data, tmp_path):
    config = config_for(tmp_path, data, run={"device": "cuda", "max_steps": 3, "log_interval": 1}, parallel={"dtype": "bf16"})
    assert math.isfinite(run_training(config).loss)
    assert "mfu" in (tmp_path / "metrics.jsonl").read_text()
