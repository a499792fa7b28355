"""Pipeline parallel: the model cut in depth, micro-batches flowing through the stages.

    gpipe         all forward passes, then all backward passes: m micro-batches in flight on every stage
    1f1b          after p - stage forward passes, one backward for every forward: at most p - stage in flight
    interleaved   1f1b over v parts per rank (rank r holds parts r, r + p, r + 2p …): the bubble is v times smaller,
                  for v times as many sends

With p stages and m micro-batches the first two wait (p-1)/m of the ideal time, (p-1)/(m+p-1) of the step; interleaved waits
(p-1)/(v m).

The last stage returns its loss, not its logits, so that no micro-batch's logits outlive its backward pass.

Source: GPipe arXiv:1811.06965; 1F1B and interleaving: Narayanan et al., arXiv:2104.04473, section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from tokpipe.errors import LayoutError
from tokpipe.estimate import layers_per_stage
from tokpipe.trainer.mesh import ParallelConfig, check_sequence
from tokpipe.trainer.model import ModelConfig, Transformer

Schedule = PipelineScheduleSingle | PipelineScheduleMulti
LossFunction = Callable[[Tensor, Tensor], Tensor]


def split_layers(num_layers: int, num_stages: int) -> list[range]:
    """Deal layers out in order; those left over go to the middle, as the first stage has the embedding and the last the head.

    Raises:
        LayoutError: if a stage would stay empty.

    Example:
        `split_layers(6, 4)` gives stages of 1, 2, 2 and 1 layers.
    """
    if num_layers < num_stages:
        raise LayoutError(f"{num_layers} layers cannot fill {num_stages} pipeline stages (pp * virtual_stages)")
    sizes = layers_per_stage(num_layers, num_stages)
    starts = [sum(sizes[:stage]) for stage in range(num_stages)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def stages_of_rank(pp_rank: int, config: ParallelConfig) -> list[int]:
    """The stages one pipeline rank holds: `pp_rank`, and every pp-th after it."""
    return list(range(pp_rank, config.num_stages, config.pp))


def prune_to_stage(model: Transformer, stage: int, num_stages: int) -> None:
    """Take out of a whole model what other stages hold; what stays keeps its name."""
    keep = split_layers(len(model.layers), num_stages)[stage]
    for name in list(model.layers):
        if int(name) not in keep:
            del model.layers[name]
    if stage > 0:
        model.embedding = None
    if stage < num_stages - 1:
        model.norm = model.head = None


def hidden_shape(model: ModelConfig, config: ParallelConfig, micro_batch: torch.Size) -> tuple[int, int, int]:
    """Shape of what passes between stages for (samples, seq) tokens: under sequence parallel this rank's part of the sequence.

    Raises:
        LayoutError: if the sequence cannot be cut over tp.
    """
    samples, seq_len = micro_batch
    cut = config.tp if config.sequence_parallel else 1
    check_sequence(seq_len, config)
    return samples, seq_len // cut, model.hidden_size


def build_stage(
    part: nn.Module,
    stage: int,
    config: ParallelConfig,
    *,
    tokens: torch.Size,
    hidden: Sequence[int],
    device: torch.device,
    group: dist.ProcessGroup,
) -> PipelineStage:
    """Wrap a model part as stage number `stage`, for micro-batches of one known shape: nothing is inferred by trial runs."""

    def activation() -> Tensor:
        return torch.empty(tuple(hidden), dtype=config.param_torch_dtype, device="meta", requires_grad=True)

    last = stage == config.num_stages - 1
    return PipelineStage(
        part,
        stage,
        config.num_stages,
        device,
        input_args=torch.empty(tokens, dtype=torch.int64, device="meta") if stage == 0 else activation(),
        output_args=torch.empty(1, dtype=torch.float32, device="meta", requires_grad=True) if last else activation(),
        group=group,
    )


def build_schedule(config: ParallelConfig, stages: Sequence[PipelineStage], loss: LossFunction) -> Schedule:
    """The order in which this rank's stages run `config.num_micro_batches` micro-batches."""
    if config.pipeline_schedule == "interleaved":
        # The loss is divided by the tokens of the global batch already: no scaling by the number of micro-batches.
        return ScheduleInterleaved1F1B(list(stages), config.num_micro_batches, loss_fn=loss, scale_grads=False)
    kind = ScheduleGPipe if config.pipeline_schedule == "gpipe" else Schedule1F1B
    return cast(Schedule, kind(stages[0], config.num_micro_batches, loss_fn=loss, scale_grads=False))
