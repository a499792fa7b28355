"""What the processes of the gang run, and the small model and batches that every test shares."""

from __future__ import annotations

import dataclasses

import torch
from torch.distributed.device_mesh import DeviceMesh

from tokpipe.trainer.mesh import ParallelConfig, axis_rank, build_mesh
from tokpipe.trainer.model import ModelConfig
from tokpipe.trainer.optimizer import OptimizerConfig
from tokpipe.trainer.parallel_model import ParallelModel
from tokpipe.trainer.parallelize import parallelize
from tokpipe.trainer.step import IGNORED, StepBatch

MODEL = ModelConfig(num_layers=4, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_size=192, vocab_size=512)
ADAMW = OptimizerConfig(lr=1e-3, weight_decay=0.1)
# Clipping is active at this norm, and plain gradient descent shows a wrong scale, which Adam would divide away.
SGD = OptimizerConfig(kind="sgd", lr=1.0, weight_decay=0.0, max_grad_norm=0.1)
GLOBAL_BATCH = 16
SEQ_LEN = 32
SEED = 7
_MESHES: dict[tuple[int, int, int], DeviceMesh | None] = {}


def mesh_for(config: ParallelConfig) -> DeviceMesh | None:
    """The mesh of a layout; kept, since every new one opens connections."""
    key = (config.pp, config.dp, config.tp)
    if key not in _MESHES:
        _MESHES[key] = build_mesh(config, world_size=config.world_size)
    return _MESHES[key]


def build(config: ParallelConfig, *, model: ModelConfig = MODEL, optimizer: OptimizerConfig = ADAMW) -> ParallelModel:
    """A parallel model on this rank."""
    mesh = mesh_for(config)
    return parallelize(model, config, optimizer, mesh=mesh, device=torch.device("cpu"), seed=SEED)


def global_batch(step: int, *, vocab_size: int = MODEL.vocab_size, documents: bool = False) -> StepBatch:
    """The whole batch of a step: learnable (tokens repeat), with labels left out very unevenly over the samples."""
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = (vocab_size * torch.rand((GLOBAL_BATCH, SEQ_LEN + 1), generator=generator) ** 4).long()
    tokens[:, 1::2] = tokens[:, 0:-1:2]
    labels = tokens[:, 1:].clone()
    labels[torch.rand(labels.shape, generator=generator) < torch.linspace(0, 0.9, GLOBAL_BATCH)[:, None]] = IGNORED
    ids = (torch.rand(labels.shape, generator=generator) < 0.1).cumsum(dim=1) if documents else None
    return StepBatch(inputs=tokens[:, :-1], labels=labels, document_ids=ids)


def local_batch(whole: StepBatch, config: ParallelConfig) -> StepBatch:
    """This replica's samples of a global batch."""
    rank = axis_rank(mesh_for(config), "dp")
    fields = {f.name: getattr(whole, f.name) for f in dataclasses.fields(whole)}
    return StepBatch(**{name: None if t is None else t.chunk(config.dp)[rank] for name, t in fields.items()})


def run_steps(
    config: ParallelConfig,
    model: ModelConfig = MODEL,
    optimizer: OptimizerConfig = ADAMW,
    num_steps: int = 5,
    documents: bool = False,
) -> list[tuple[float, float]]:
    """Train from the same start on the same batches; (loss, gradient norm) of every step, then (validation loss, tokens)."""
    trained = build(config, model=model, optimizer=optimizer)
    curve = []
    for step in range(num_steps):
        batch = local_batch(global_batch(step, vocab_size=model.vocab_size, documents=documents), config)
        result = trained.train_step(batch)
        curve.append((result.loss, result.grad_norm))
    batch = local_batch(global_batch(99, vocab_size=model.vocab_size, documents=documents), config)
    held_out = trained.eval_loss(batch)
    return [*curve, (held_out.loss_sum / held_out.num_tokens, held_out.num_tokens / 1e6)]


def coordinates(config: ParallelConfig) -> tuple[int, int, int]:
    """This rank's place on the mesh."""
    mesh = mesh_for(config)
    return axis_rank(mesh, "pp"), axis_rank(mesh, "dp"), axis_rank(mesh, "tp")
