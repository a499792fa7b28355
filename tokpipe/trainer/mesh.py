"""The 3D grid: how many ranks share which work, and which rank stands where.

A rank is a coordinate (pp, dp, tp): the pipeline stage it holds, the replica it belongs to, and its slice of every weight
matrix. Tensor parallel talks several times in every layer, so it is the innermost axis and stays inside a node; the pipeline
sends one activation per micro-batch, so it is the outermost axis and may cross nodes.

`ParallelConfig` holds every degree and refuses what cannot work; nothing below it checks again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tokpipe.errors import LayoutError

AXES = ("pp", "dp", "tp")
ZERO_BUBBLE = ("zero-bubble", "interleaved-zero-bubble", "zbv")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How one training step is laid out over `pp * dp * tp` ranks.

    Raises:
        LayoutError: for a combination that is impossible, or that is known to give wrong gradients.

    Example:
        `ParallelConfig(dp=2, tp=2, pp=2, num_micro_batches=4)` runs on 8 ranks; each replica's batch is cut into 4.
    """

    dp: int = 1
    """Data-parallel replicas; each reads its own share of the global batch."""
    tp: int = 1
    """Ranks that share every weight matrix; a divisor of `gpus_per_node`."""
    pp: int = 1
    """Pipeline stages in depth."""
    zero: Literal[0, 1, 2, 3] = 0
    """What data-parallel ranks shard: 1 optimizer state, 2 gradients as well, 3 parameters as well."""
    pipeline_schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    """Order of forward and backward passes over the micro-batches."""
    virtual_stages: int = 1
    """Model parts per pipeline rank; above 1 with `interleaved` only."""
    num_micro_batches: int = 1
    """Pieces of one replica's batch: pipeline micro-batches, or gradient accumulation without a pipeline."""
    sequence_parallel: bool = True
    """Shard norms and residuals along the sequence between tensor-parallel regions."""
    vocab_parallel_loss: bool = True
    """Compute the loss on vocabulary shards, without gathering the logits."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations to compute again in the backward pass: none, the attention core, or whole blocks."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Parameters and activations; `bf16` keeps an fp32 master copy in the optimizer."""
    grad_dtype: Literal["same", "fp32"] = "same"
    """Gradients: as the parameters (16 bytes per parameter in all), or fp32 (18)."""
    gpus_per_node: int = 8
    """Ranks inside one fast network (NVLink)."""
    compile: bool = False
    """`torch.compile` every transformer block."""

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "virtual_stages", "num_micro_batches", "gpus_per_node"):
            if getattr(self, name) < 1:
                raise LayoutError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.zero not in (0, 1, 2, 3):
            raise LayoutError(f"zero must be 0, 1, 2 or 3, got {self.zero}")
        _check_names(self)
        if self.gpus_per_node % self.tp:
            raise LayoutError(
                f"tp={self.tp} does not divide gpus_per_node={self.gpus_per_node}: a tensor-parallel group would straddle nodes "
                "and send every layer's all-reduce over the slow network. Choose a divisor, or use pp for more memory."
            )
        if self.compile and self.tp > 1 and self.recompute == "selective":
            raise LayoutError(
                f"compile with tp={self.tp} and recompute='selective' is refused: PyTorch (2.13) saves the device mesh of a "
                "compiled block as if it were a tensor, and raises. Use 'none' or 'full', or leave out compile."
            )
        _check_pipeline(self)

    @property
    def world_size(self) -> int:
        """Ranks the layout needs."""
        return self.pp * self.dp * self.tp

    @property
    def num_stages(self) -> int:
        """Model parts over the whole pipeline: `pp * virtual_stages`."""
        return self.pp * self.virtual_stages

    @property
    def param_torch_dtype(self) -> torch.dtype:
        """The dtype of parameters and activations."""
        return DTYPES[self.dtype]

    @property
    def grad_torch_dtype(self) -> torch.dtype:
        """The dtype gradients are accumulated and reduced in."""
        return torch.float32 if self.grad_dtype == "fp32" else self.param_torch_dtype

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage that has an effect: one replica has nothing to shard over."""
        return self.zero if self.dp > 1 else 0


def _check_names(config: ParallelConfig) -> None:
    if config.pipeline_schedule in ZERO_BUBBLE:
        raise LayoutError(
            f"pipeline_schedule={config.pipeline_schedule!r} is refused: PyTorch's zero-bubble schedules compute weight "
            "gradients outside autograd's hooks, and with parameters resharded after forward (ZeRO-3) the gradients are silently "
            "wrong (measured: the loss drifts by 1.0 within 8 steps). Use '1f1b' or 'interleaved'."
        )
    choices = {
        "pipeline_schedule": ("gpipe", "1f1b", "interleaved"),
        "recompute": ("none", "selective", "full"),
        "dtype": tuple(DTYPES),
        "grad_dtype": ("same", "fp32"),
    }
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise LayoutError(f"{name} must be one of {', '.join(allowed)}, got {getattr(config, name)!r}")


def _check_pipeline(config: ParallelConfig) -> None:
    interleaved = config.pipeline_schedule == "interleaved"
    if config.virtual_stages > 1 and not (interleaved and config.pp > 1):
        raise LayoutError(
            f"virtual_stages={config.virtual_stages} needs pipeline_schedule='interleaved' and pp > 1, "
            f"got {config.pipeline_schedule!r} and pp={config.pp}"
        )
    if config.pp == 1:
        return
    if interleaved and config.virtual_stages < 2:
        raise LayoutError("pipeline_schedule='interleaved' needs virtual_stages of 2 or more; with 1 it is '1f1b'")
    if config.pipeline_schedule == "1f1b" and config.num_micro_batches < config.pp:
        raise LayoutError(
            f"1f1b needs at least pp={config.pp} micro-batches to fill the pipeline, got {config.num_micro_batches}; "
            "raise num_micro_batches or use 'gpipe'"
        )
    if interleaved and config.num_micro_batches % config.pp:
        raise LayoutError(
            f"interleaved runs micro-batches in rounds of pp={config.pp}; "
            f"num_micro_batches={config.num_micro_batches} is no multiple of it"
        )


def check_sequence(seq_len: int, config: ParallelConfig) -> None:
    """Refuse a sequence that sequence parallel cannot cut: ranks would send each other tensors of different shapes.

    Raises:
        LayoutError: with the next length that works.
    """
    if config.sequence_parallel and seq_len % config.tp:
        raise LayoutError(
            f"sequence parallel cuts seq_len={seq_len} over tp={config.tp}, which does not divide it; the next that works is "
            f"{(seq_len // config.tp + 1) * config.tp}, or set sequence_parallel = false"
        )


def build_mesh(config: ParallelConfig, *, world_size: int, device_type: str = "cpu") -> DeviceMesh | None:
    """Lay the ranks out as (pp, dp, tp), tensor parallel innermost.

    Returns:
        The mesh with axes `("pp", "dp", "tp")`, or `None` for one process without a process group.

    Raises:
        LayoutError: if the layout needs another number of ranks than there are.

    Example:
        On 8 ranks with pp = dp = tp = 2, rank 5 is (pp 1, dp 0, tp 1): `rank = (pp * 2 + dp) * 2 + tp`.
    """
    if config.world_size != world_size:
        raise LayoutError(
            f"pp={config.pp} x dp={config.dp} x tp={config.tp} needs {config.world_size} ranks, "
            f"but {world_size} were started; change the degrees or `torchrun --nproc-per-node`"
        )
    if world_size == 1:
        return None
    return init_device_mesh(device_type, (config.pp, config.dp, config.tp), mesh_dim_names=AXES)


def axis_rank(mesh: DeviceMesh | None, axis: str) -> int:
    """This rank's coordinate on one axis; 0 without a mesh."""
    return 0 if mesh is None else mesh.get_local_rank(axis)


def axis_group(mesh: DeviceMesh | None, axis: str) -> dist.ProcessGroup | None:
    """The process group of one axis, or `None` if the axis has one rank: nothing to talk to."""
    if mesh is None or mesh.size(AXES.index(axis)) == 1:
        return None
    return mesh.get_group(axis)


def grid_coordinates(config: ParallelConfig, rank: int) -> tuple[int, int, int]:
    """Return `(pp, dp, tp)` of a rank.

    Example:
        `grid_coordinates(ParallelConfig(pp=2, dp=2, tp=2, num_micro_batches=2), 5) == (1, 0, 1)`
    """
    if not 0 <= rank < config.world_size:
        raise ValueError(f"rank must be in [0, {config.world_size}), got {rank}")
    outer, tp_rank = divmod(rank, config.tp)
    return outer // config.dp, outer % config.dp, tp_rank


def describe_mesh(config: ParallelConfig) -> str:
    """The grid as text: what each axis shares, sends, and over which network, then the coordinates of the first ranks.

    An axis stays on NVLink if the ranks of each of its groups fit inside one node of `gpus_per_node` consecutive ranks.
    """
    rows = [("axis", "size", "stride", "network", "sends")]
    sends = {
        "pp": "one activation and one gradient per micro-batch at each stage boundary",
        "dp": {0: "gradients (all-reduce)", 3: "parameters twice, gradients once, block by block"}.get(
            config.zero_stage, "gradients (reduce-scatter), parameters (all-gather)"
        )
        + (", every micro-batch" if config.zero_stage == 3 or (config.zero_stage == 2 and config.pp == 1) else ", once a step"),
        "tp": "activations, in every layer, forward and backward",
    }
    strides = {"tp": 1, "dp": config.tp, "pp": config.tp * config.dp}
    for axis in AXES:
        size = getattr(config, axis)
        inside = config.gpus_per_node % (strides[axis] * size) == 0
        network = "-" if size == 1 else "NVLink" if inside else "InfiniBand"
        rows.append((axis, str(size), str(strides[axis]), network, sends[axis] if size > 1 else "-"))
    lines = [f"{a:<5}{b:>5}{c:>8}  {d:<11} {e}" for a, b, c, d, e in rows]
    shown = min(config.world_size, 16)
    places = [f"{rank}:{grid_coordinates(config, rank)}" for rank in range(shown)]
    rest = f" and {config.world_size - shown} more" if config.world_size > shown else ""
    return "\n".join([*lines, f"rank:(pp, dp, tp)  {'  '.join(places)}{rest}"])
