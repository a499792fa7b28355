"""Small runs for the tests of the training loop, and what the processes of the gang run of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokpipe.shards import Manifest, ShardEntry, ShardWriter, TokenizerEntry, dataset_id, write_manifest
from tokpipe.trainer.config import (
    CheckpointConfig,
    DataConfig,
    FailureConfig,
    MetricsConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
)
from tokpipe.trainer.data import DatasetSource
from tokpipe.trainer.mesh import ParallelConfig, build_mesh
from tokpipe.trainer.model import ModelConfig
from tokpipe.trainer.optimizer import OptimizerConfig
from tokpipe.trainer.step import StepBatch
from tokpipe.trainer.train import run_training

# Two threads that wait for each other cost more than these models compute.
torch.set_num_threads(1)

MODEL = ModelConfig(num_layers=4, hidden_size=32, num_heads=4, num_kv_heads=2, ffn_size=64, vocab_size=300)
EOS = 2
SEQ_LEN = 16
GLOBAL_BATCH = 16


def write_dataset(folder: Path, *, tokenizer: TokenizerEntry | None = None) -> Path:
    """Two sources, each with a training and a held-out shard of documents that repeat themselves."""
    rng = np.random.default_rng(3)
    vocab_size = tokenizer.vocab_size if tokenizer else MODEL.vocab_size
    entries = []
    for number, (source, held_out, count) in enumerate(
        [("en", False, 60), ("hi", False, 60), ("en", True, 12), ("hi", True, 12)]
    ):
        name = f"shards/{source}-{number:05}-000"
        phrases = [rng.integers(4, vocab_size, rng.integers(2, 6)) for _ in range(count)]
        documents = [np.append(np.tile(phrase, rng.integers(4, 12)), EOS) for phrase in phrases]
        offsets = np.concatenate([[0], np.cumsum([len(d) for d in documents])]).astype(np.int64)
        with ShardWriter(folder / name, dtype="uint16") as writer:
            writer.append(np.concatenate(documents), offsets)
            info = writer.commit()
        assert info is not None
        entries.append(ShardEntry(name=name, source=source, held_out=held_out, **asdict(info)))
    tokenizer = tokenizer or TokenizerEntry(fingerprint="ab" * 8, vocab_size=vocab_size, eos_id=EOS)
    manifest = Manifest(
        dataset_id=dataset_id(tokenizer.fingerprint, entries),
        tool_version="0.1.0",
        created="2026-01-01T00:00:00Z",
        tokenizer=tokenizer,
        dtype="uint16",
        sources=("en", "hi"),
        shards=tuple(entries),
        settings={},
        rejects={},
        skipped={},
    )
    write_manifest(folder, manifest)
    return folder


def config_for(out: Path, data_path: Path, /, **changes: Any) -> TrainConfig:
    """A run of 6 steps on CPU; `changes` go to the config they belong to by name, or replace a whole one."""
    parts: dict[str, dict[str, Any]] = {
        "data": {"path": str(data_path), "seq_len": SEQ_LEN, "global_batch_size": GLOBAL_BATCH},
        "schedule": {"kind": "constant", "warmup_steps": 2},
        "optimizer": {"lr": 1e-2},
        "run": {"out": str(out), "max_steps": 6, "seed": 5, "device": "cpu", "log_interval": 2},
        "checkpoint": {"interval": 3},
        "metrics": {"plot": False},
        "failure": {"timeout_seconds": 60.0},
        "parallel": {},
        "model": asdict(MODEL),
    }
    kinds = {
        "data": DataConfig,
        "schedule": ScheduleConfig,
        "optimizer": OptimizerConfig,
        "run": RunConfig,
        "checkpoint": CheckpointConfig,
        "metrics": MetricsConfig,
        "failure": FailureConfig,
        "parallel": ParallelConfig,
        "model": ModelConfig,
    }
    for name, values in changes.items():
        parts[name] |= values
    return TrainConfig(**{name: kinds[name](**values) for name, values in parts.items()})


class Recorder:
    """A source that remembers a hash of every sample it hands out."""

    def __init__(self, inner: DatasetSource) -> None:
        self._inner = inner
        self.hashes: list[list[str]] = []

    def next_step(self) -> StepBatch:
        batch = self._inner.next_step()
        rows = torch.cat([batch.inputs, batch.labels], dim=1)
        self.hashes.append([hashlib.sha1(row.numpy().tobytes()).hexdigest()[:12] for row in rows])
        return batch

    def state_dict(self) -> dict[str, Any]:
        return self._inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._inner.load_state_dict(state)

    def close(self) -> None:
        self._inner.close()


def recorded_run(config: TrainConfig) -> tuple[tuple[float, ...], list[list[str]]]:
    """(losses of every step made, hashes of this rank's samples of every step)."""
    world_size = config.parallel.world_size
    mesh = build_mesh(config.parallel, world_size=world_size) if world_size > 1 else None
    source = Recorder(
        DatasetSource(
            config.data, seed=config.run.seed, mesh=mesh, micro_batch_size=config.micro_batch_size, device=torch.device("cpu")
        )
    )
    return run_training(config, source=source).losses, source.hashes
