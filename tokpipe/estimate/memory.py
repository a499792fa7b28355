"""Bytes of model state per rank: what Adam in mixed precision needs, and what each ZeRO stage divides.

Per parameter: 2 (bf16 weight) + 2 (bf16 gradient) + 4 (fp32 master) + 4 (momentum) + 4 (variance) = 16 bytes.
Source: Rajbhandari et al., "ZeRO", arXiv:1910.02054, section 3.1 and figure 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokpipe.estimate.grid import layers_per_stage
from tokpipe.estimate.shapes import ModelShape

PARAM_BYTES = 2
GRAD_BYTES = 2
OPTIMIZER_BYTES = 12
"""fp32 master copy, momentum and variance, 4 bytes each."""
STATE_BYTES = PARAM_BYTES + GRAD_BYTES + OPTIMIZER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """Bytes one rank holds between two optimizer steps."""

    params: float
    grads: float
    optimizer: float

    @property
    def total(self) -> float:
        """Sum in bytes."""
        return self.params + self.grads + self.optimizer


def zero_state(num_params: float, *, dp: int, zero: int, grad_bytes: int = GRAD_BYTES) -> ModelState:
    """Model state of one of `dp` ranks that hold `num_params` parameters between them, under a ZeRO stage.

    Stage 0 replicates all, 1 shards the optimizer, 2 the gradients too, 3 the parameters too.

    Example:
        `zero_state(7e9, dp=64, zero=1).total == 29.3125e9`

    Raises:
        ValueError: if `zero` is not 0 to 3 or `dp` is below 1.
    """
    if zero not in (0, 1, 2, 3):
        raise ValueError(f"the ZeRO stage must be 0, 1, 2 or 3, got {zero}")
    if dp < 1:
        raise ValueError(f"dp must be at least 1, got {dp}")
    return ModelState(
        params=PARAM_BYTES * num_params / (dp if zero >= 3 else 1),
        grads=grad_bytes * num_params / (dp if zero >= 2 else 1),
        optimizer=OPTIMIZER_BYTES * num_params / (dp if zero >= 1 else 1),
    )


def rank_layers(num_layers: int, *, pp: int, virtual_stages: int = 1) -> tuple[int, ...]:
    """Layers that each pipeline rank holds, over its virtual stages (rank r has stages r, r + pp, ...).

    Raises:
        ValueError: if there are more stages than layers.
    """
    sizes = layers_per_stage(num_layers, pp * virtual_stages)
    return tuple(sum(sizes[rank::pp]) for rank in range(pp))


def stage_params(shape: ModelShape, *, tp: int, pp: int, virtual_stages: int = 1) -> tuple[int, ...]:
    """Parameters one tensor-parallel rank of each pipeline rank holds, the embedding first and the head last.

    Layers that do not divide go where the trainer puts them. Norm weights are counted as split; they are replicated, and too few
    to matter.

    Raises:
        ValueError: if there are more stages than layers.
    """
    counts = [layers * shape.layer_params for layers in rank_layers(shape.num_layers, pp=pp, virtual_stages=virtual_stages)]
    counts[0] += shape.embedding_params
    counts[-1] += shape.head_params
    if shape.block == "gpt" and pp > 1:
        counts[-1] += shape.vocab_size * shape.hidden_size  # the tied output matrix has to live on the last stage as well
    return tuple(-(-count // tp) for count in counts)


def gpus_to_hold(total_bytes: float, gpu_bytes: float) -> int:
    """How many GPUs' whole memory one replica's state fills.

    Example:
        `gpus_to_hold(2.8e12, 80e9) == 35`
    """
    return int(-(-total_bytes // gpu_bytes))
