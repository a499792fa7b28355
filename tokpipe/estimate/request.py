"""What `tokpipe plan` is asked: a model, a cluster and a layout, checked and completed."""

from __future__ import annotations

from dataclasses import dataclass

from tokpipe.estimate.bubble import Schedule
from tokpipe.estimate.shapes import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A model on a cluster. Build it with `complete_request`, which fills in what follows from the rest."""

    shape: ModelShape
    num_params: float
    """The count that the rules of thumb use: 7e9 for a "7B"."""
    gpus: int
    gpu_bytes: float
    gpus_per_node: int
    dp: int
    tp: int
    pp: int
    zero: int
    schedule: Schedule
    virtual_stages: int
    seq_len: int
    micro_batch_size: int
    global_batch_size: int
    num_micro_batches: int
    """Per replica and step."""
    num_tokens: float
    notes: tuple[str, ...] = ()
    """What was chosen for the user, in words."""

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one global batch."""
        return self.global_batch_size * self.seq_len


def resolve_dp(*, gpus: int, tp: int, pp: int, dp: int | None, gpus_per_node: int) -> int:
    """Data-parallel replicas: what the GPUs leave, or the given number if it fits.

    Raises:
        ValueError: if tp x pp (x dp) is not the number of GPUs, or tp leaves the node.
    """
    if min(gpus, tp, pp, gpus_per_node) < 1:
        raise ValueError(f"--gpus, --tp, --pp and --gpus-per-node must be at least 1, got {gpus}, {tp}, {pp}, {gpus_per_node}")
    if tp > 1 and gpus_per_node % tp:
        raise ValueError(
            f"--tp {tp} does not divide the {gpus_per_node} GPUs of a node: its all-reduces would leave NVLink. "
            f"Choose one of {[n for n in range(1, gpus_per_node + 1) if gpus_per_node % n == 0]}."
        )
    if gpus % (tp * pp):
        raise ValueError(f"{gpus} GPUs are not a multiple of tp {tp} x pp {pp} = {tp * pp}; change --gpus, --tp or --pp")
    left = gpus // (tp * pp)
    if dp is not None and dp != left:
        raise ValueError(
            f"dp {dp} x tp {tp} x pp {pp} = {dp * tp * pp} GPUs, but there are {gpus}; --dp {left} would use them all"
        )
    return left


def resolve_batch(
    *, dp: int, micro_batch_size: int, global_batch_size: int | None, num_micro_batches: int | None, default: int
) -> tuple[int, int, str]:
    """(global batch size, micro-batches per step, what was chosen for the user or nothing).

    Raises:
        ValueError: if the given numbers contradict each other.
    """
    if micro_batch_size < 1 or (num_micro_batches or 1) < 1 or (global_batch_size or 1) < 1:
        raise ValueError("--micro-batch-size, --micro-batches and --global-batch-size must be at least 1")
    one = dp * micro_batch_size
    if global_batch_size is None and num_micro_batches is not None:
        return (
            one * num_micro_batches,
            num_micro_batches,
            f"global batch = {dp} x {micro_batch_size} x {num_micro_batches} micro-batches",
        )
    if global_batch_size is None:
        count = max(1, default // one)
        note = (
            ""
            if count * one == default
            else f"global batch {count * one}: {default} is not a multiple of dp x micro-batch = {one}"
        )
        return count * one, count, note
    if global_batch_size % one:
        raise ValueError(
            f"--global-batch-size {global_batch_size} is not a multiple of dp {dp} x micro-batch {micro_batch_size} = {one}; "
            f"{_nearest(global_batch_size, one)}"
        )
    count = global_batch_size // one
    if num_micro_batches is not None and num_micro_batches != count:
        raise ValueError(
            f"--micro-batches {num_micro_batches} contradicts --global-batch-size {global_batch_size}: over dp {dp} and "
            f"micro-batches of {micro_batch_size} that makes {count}. Give one of the two."
        )
    return global_batch_size, count, ""


def _nearest(size: int, one: int) -> str:
    below = size // one * one
    return f"the nearest that are: {below} and {below + one}" if below else f"the smallest that is: {one}"


def complete_request(
    shape: ModelShape,
    *,
    num_params: float | None = None,
    gpus: int = 64,
    gpu_bytes: float = 80e9,
    gpus_per_node: int = 8,
    dp: int | None = None,
    tp: int = 1,
    pp: int = 1,
    zero: int = 1,
    schedule: Schedule = "1f1b",
    virtual_stages: int = 1,
    seq_len: int = 2048,
    micro_batch_size: int = 1,
    global_batch_size: int | None = None,
    num_micro_batches: int | None = None,
    num_tokens: float | None = None,
    default_global_batch_size: int = 2048,
    notes: tuple[str, ...] = (),
) -> PlanRequest:
    """Check a request and fill in dp, the batch and the token budget.

    Raises:
        ValueError: with the numbers, if the layout is impossible.
    """
    resolved_dp = resolve_dp(gpus=gpus, tp=tp, pp=pp, dp=dp, gpus_per_node=gpus_per_node)
    if pp * virtual_stages > shape.num_layers:
        raise ValueError(f"pp {pp} x {virtual_stages} virtual stages is more than the model's {shape.num_layers} layers")
    if (schedule == "interleaved") != (virtual_stages > 1):
        raise ValueError(
            f"the schedule {schedule} and {virtual_stages} virtual stages do not go together: interleaved has 2 or more"
        )
    if shape.num_kv_heads % tp:
        raise ValueError(
            f"--tp {tp} does not divide the {shape.num_kv_heads} key and value heads: a head would be split over ranks"
        )
    if seq_len % tp:
        raise ValueError(f"--tp {tp} does not divide --seq-len {seq_len}: sequence parallel could not cut it")
    if seq_len < 1 or gpu_bytes <= 0:
        raise ValueError(f"--seq-len and --gpu-memory must be positive, got {seq_len} and {gpu_bytes:g} bytes")
    batch, micro_batches, note = resolve_batch(
        dp=resolved_dp,
        micro_batch_size=micro_batch_size,
        global_batch_size=global_batch_size,
        num_micro_batches=num_micro_batches,
        default=default_global_batch_size,
    )
    params = num_params or shape.called_params
    if schedule == "1f1b" and micro_batches < pp:
        raise ValueError(
            f"1f1b needs at least pp {pp} micro-batches to fill the pipeline, and the batch makes {micro_batches}; "
            "raise --micro-batches or --global-batch-size, or take --schedule gpipe"
        )
    if schedule == "interleaved" and micro_batches % pp:
        raise ValueError(f"the interleaved schedule needs micro-batches in multiples of pp: {micro_batches} over {pp} stages")
    return PlanRequest(
        shape=shape,
        num_params=params,
        gpus=gpus,
        gpu_bytes=gpu_bytes,
        gpus_per_node=gpus_per_node,
        dp=resolved_dp,
        tp=tp,
        pp=pp,
        zero=zero,
        schedule=schedule,
        virtual_stages=virtual_stages,
        seq_len=seq_len,
        micro_batch_size=micro_batch_size,
        global_batch_size=batch,
        num_micro_batches=micro_batches,
        num_tokens=num_tokens or shape.published_tokens or 20 * params,
        notes=(*notes, *([note] if note else [])),
    )
