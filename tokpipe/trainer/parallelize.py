"""Parallelism, applied to a plain model from outside, in one function and one order.

The order matters, each step sees what the ones before left:

    1. lay out      build the whole model without memory; cut out this rank's pipeline stages       pipeline_parallel.py
    2. tp           cut weight matrices, put communication at module edges                           tensor_parallel.py
    3. recompute    wrap blocks or attention cores: outside the cut modules, so a rerun repeats
                    their communication                                                              recompute.py
    4. compile      compile each block, inside the wrapper of one that is recomputed whole
    5. ZeRO 3       shard parameters over dp: last of the wrappers, so that it gathers whole blocks  fully_sharded.py
    6. fill         allocate, and draw each parameter from seed and name                             initialize.py
    7. ZeRO 0-2     hook gradients into buckets                                                      zero.py
    8. optimizer    fp32 masters and AdamW state for what this rank owns                             optimizer.py
"""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh

from tokpipe.trainer.fully_sharded import FullyShardedGroup, shard_fully, storage_dtype
from tokpipe.trainer.initialize import materialize
from tokpipe.trainer.mesh import ParallelConfig, axis_group, axis_rank
from tokpipe.trainer.model import ModelConfig, Transformer
from tokpipe.trainer.optimizer import MasterOptimizer, OptimizerConfig, WeightGroup
from tokpipe.trainer.parallel_model import ParallelModel
from tokpipe.trainer.pipeline_parallel import prune_to_stage, stages_of_rank
from tokpipe.trainer.recompute import apply_recompute, bare_block, plain_name
from tokpipe.trainer.tensor_parallel import apply_tensor_parallel, check_tensor_parallel
from tokpipe.trainer.weights import OwnedWeight, owned_weight
from tokpipe.trainer.zero import GradientBucket, GradientReducer


def parallelize(
    model_config: ModelConfig,
    config: ParallelConfig,
    optimizer: OptimizerConfig,
    *,
    mesh: DeviceMesh | None,
    device: torch.device,
    seed: int,
) -> ParallelModel:
    """Build this rank's share of a model, ready to train; collective.

    Args:
        model_config: Shape of the plain model.
        config: The layout.
        optimizer: How weights move.
        mesh: From `build_mesh`; `None` for one process.
        device: Where this rank computes.
        seed: Of the initial weights; the same seed gives the same weights in every layout.

    Raises:
        LayoutError: if the model cannot be cut as asked.
    """
    check_tensor_parallel(model_config, config)
    in_flight: list[GradientBucket] = []
    parts: list[Transformer] = []
    optimizers: list[MasterOptimizer] = []
    buckets: list[GradientBucket] = []
    for stage in stages_of_rank(axis_rank(mesh, "pp"), config):
        part = _lay_out(model_config, config, mesh, stage)
        materialize(part, device=device, seed=seed, rounded_to=config.param_torch_dtype)
        groups = _group_weights(part, config, mesh)
        gradients: list[WeightGroup]
        if config.zero_stage == 3:
            gradients = [FullyShardedGroup(weights) for weights in groups]
        else:
            mine = [GradientBucket(weights, config, axis_group(mesh, "dp"), in_flight) for weights in groups]
            buckets += mine
            gradients = list(mine)
        parts.append(part)
        optimizers.append(MasterOptimizer(gradients, optimizer))
    return ParallelModel(
        config=config,
        mesh=mesh,
        device=device,
        parts=parts,
        optimizers=optimizers,
        reducer=GradientReducer(buckets, config),
    )


def _lay_out(model_config: ModelConfig, config: ParallelConfig, mesh: DeviceMesh | None, stage: int) -> Transformer:
    """Steps 1 to 5: one stage's modules, on the meta device."""
    with torch.device("meta"):
        model = Transformer(model_config).to(storage_dtype(config))
    prune_to_stage(model, stage, config.num_stages)
    if config.tp > 1 and mesh is not None:
        apply_tensor_parallel(model, config, mesh)
    apply_recompute(model, config.recompute)
    if config.compile:
        for block in model.layers.values():
            bare_block(block).compile(fullgraph=True)
    if config.zero_stage == 3 and mesh is not None:
        shard_fully(model, config, mesh)
    return model


def _group_weights(model: Transformer, config: ParallelConfig, mesh: DeviceMesh | None) -> list[list[OwnedWeight]]:
    """The weights of the embedding, of each block, and of norm and head, each a group that is reduced together."""
    groups: dict[str, list[OwnedWeight]] = {}
    for raw, param in model.named_parameters():
        name = plain_name(raw)
        first, second, *_ = name.split(".")
        key = f"{first}.{second}" if first == "layers" else "top" if first in ("norm", "head") else first
        groups.setdefault(key, []).append(owned_weight(name, param, config, mesh))
    return list(groups.values())
