"""Tensor parallel: every weight matrix cut over tp ranks, column-wise then row-wise, so that a block talks twice.

    attention   query, key, value by columns (this rank's heads)  ->  output by rows
    ffn         gate, up by columns                               ->  down by rows

A row-wise product leaves partial sums. Without sequence parallel they are all-reduced. With it they are reduce-scattered along
the sequence: norms and residuals work on seq / tp positions, and the next column-wise product gathers the sequence again; the
same bytes travel, and the activations between shrink by tp.

The embedding is cut by vocabulary rows, the head by vocabulary columns; the loss works on the shards (loss.py).

Source: Shoeybi et al., "Megatron-LM", arXiv:1909.08053, section 3; sequence parallel: Korthikanti et al., arXiv:2205.05198,
section 4.2.
"""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from tokpipe.errors import LayoutError
from tokpipe.trainer.loss import VocabParallelLoss
from tokpipe.trainer.mesh import ParallelConfig, axis_group
from tokpipe.trainer.model import ModelConfig, Transformer


def check_tensor_parallel(model: ModelConfig, config: ParallelConfig) -> None:
    """Refuse a model that cannot be cut `config.tp` ways.

    Raises:
        LayoutError: if heads would have to be split.
    """
    for name in ("num_heads", "num_kv_heads"):
        if getattr(model, name) % config.tp:
            raise LayoutError(
                f"tp={config.tp} does not divide {name}={getattr(model, name)}: a head would be split over ranks. "
                "Choose a smaller tp, or another model shape."
            )


def apply_tensor_parallel(model: Transformer, config: ParallelConfig, mesh: DeviceMesh) -> None:
    """Cut the model's weights over the tp axis and put the communication at the edges of its modules."""
    tp_mesh = mesh["tp"]
    residual = Shard(1) if config.sequence_parallel else Replicate()
    for block in model.layers.values():
        parallelize_module(block, tp_mesh, _block_plan(config, residual))
    if model.embedding is not None:
        parallelize_module(model.embedding, tp_mesh, RowwiseParallel(input_layouts=Replicate(), output_layouts=residual))
        if config.compile:
            # The embedding's output is a collective under way. Compiled code that takes one loses the way back to it (PyTorch
            # 2.13: the backward pass raises), so it is waited for.
            model.embedding.register_forward_hook(lambda module, args, output: output.clone())
    if model.norm is not None and config.sequence_parallel:
        parallelize_module(model.norm, tp_mesh, SequenceParallel())
    if model.head is not None:
        logits = Shard(-1) if config.vocab_parallel_loss else Replicate()
        parallelize_module(model.head, tp_mesh, ColwiseParallel(input_layouts=residual, output_layouts=logits))
        group = axis_group(mesh, "tp")
        if config.vocab_parallel_loss and group is not None:
            model.loss = VocabParallelLoss(group, vocab_size=model.config.vocab_size)


def _block_plan(config: ParallelConfig, residual: Shard | Replicate) -> dict[str, ParallelStyle]:
    gather = PrepareModuleInput(input_layouts=(residual,), desired_input_layouts=(Replicate(),))
    # Attention takes cos, sin and the mask as well: the same on every rank, and left as they are.
    gather_first = PrepareModuleInput(
        input_layouts=(residual, None, None, None), desired_input_layouts=(Replicate(), None, None, None)
    )
    plan: dict[str, ParallelStyle] = {
        "attention": gather_first,
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(output_layouts=residual),
        "ffn": gather,
        "ffn.gate": ColwiseParallel(),
        "ffn.up": ColwiseParallel(),
        "ffn.down": RowwiseParallel(output_layouts=residual),
    }
    if config.sequence_parallel:
        plan |= {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
    return plan
