"""Everything `tokpipe plan` knows about a request, as one nest of frozen dataclasses: text and JSON are made from the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tokpipe.estimate.activations import RECOMPUTE, MicroBatch, Recompute, layer_bytes, llama_layer_bytes, standard_layer_bytes
from tokpipe.estimate.bubble import bubble_over_ideal, bubble_share, in_flight
from tokpipe.estimate.communication import AxisTraffic, data_parallel_traffic, pipeline_traffic, tensor_parallel_traffic
from tokpipe.estimate.compute import flops_per_token
from tokpipe.estimate.fit import RESERVE, StageMemory, Suggestion, fits, stage_memory, suggest_layouts
from tokpipe.estimate.memory import STATE_BYTES, gpus_to_hold, stage_params, zero_state
from tokpipe.estimate.request import PlanRequest
from tokpipe.estimate.tokens import CHINCHILLA_RATIO, chinchilla_tokens, corpus_bytes, num_steps, token_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRow:
    """Model state under one ZeRO stage, in bytes per GPU."""

    zero: int
    plain: float
    """Data parallelism over all GPUs, the nominal parameter count: the textbook's number."""
    exact: float
    """The same with the exact count."""
    in_3d: float
    """16 bytes x parameters / (tp pp) with ZeRO over dp."""
    heaviest_stage: float
    """In 3D on the fullest pipeline stage, which carries the embedding or the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationRow:
    """Activations of one micro-batch through all layers on one GPU, in bytes, before tensor and pipeline parallelism."""

    recompute: Recompute
    standard_layer: float
    standard_total: float
    own_layer: float
    """The block the shape names with fused attention."""
    own_total: float
    unfused_total: float
    doubling: float
    """How much the standard total grows when the sequence doubles."""
    peak_stage: StageMemory
    """The fullest pipeline stage of the asked layout with this recomputation."""
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BubbleRow:
    """One schedule's idle time."""

    schedule: str
    over_ideal: float
    share: float
    in_flight: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """Tokens, bytes and steps."""

    chinchilla: float
    planned: float
    per_param: float
    times_chinchilla: float
    bytes_per_token: int
    corpus_bytes: float
    bytes_per_rank: float
    tokens_per_step: int
    steps: int
    whole_steps: int
    flops_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole answer."""

    request: PlanRequest
    exact_params: int
    bytes_per_param: int
    replica_bytes: float
    gpus_to_hold: int
    reserve: float
    state: tuple[StateRow, ...]
    activations: tuple[ActivationRow, ...]
    stage_params: tuple[int, ...]
    bubble: tuple[BubbleRow, ...]
    tokens: TokenBudget
    traffic: tuple[AxisTraffic, ...]
    suggestions: tuple[Suggestion, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; bytes, tokens and ratios in full precision."""
        return asdict(self)


def make_plan(request: PlanRequest) -> Plan:
    """Do all the arithmetic for a checked request."""
    replica = STATE_BYTES * request.num_params
    return Plan(
        request=request,
        exact_params=request.shape.num_params,
        bytes_per_param=STATE_BYTES,
        replica_bytes=replica,
        gpus_to_hold=gpus_to_hold(replica, request.gpu_bytes),
        reserve=RESERVE,
        state=tuple(_state_row(request, zero) for zero in range(4)),
        activations=tuple(_activation_row(request, recompute) for recompute in RECOMPUTE),
        stage_params=_stage_params(request),
        bubble=_bubble_rows(request),
        tokens=_token_budget(request),
        traffic=_traffic(request),
        suggestions=suggest_layouts(request),
    )


def _stage_params(request: PlanRequest) -> tuple[int, ...]:
    return stage_params(request.shape, tp=request.tp, pp=request.pp, virtual_stages=request.virtual_stages)


def _state_row(request: PlanRequest, zero: int) -> StateRow:
    replicas = request.dp
    per_rank = request.num_params / (request.tp * request.pp)
    heaviest = max(_stage_params(request))
    return StateRow(
        zero=zero,
        plain=zero_state(request.num_params, dp=request.gpus, zero=zero).total,
        exact=zero_state(request.shape.num_params, dp=request.gpus, zero=zero).total,
        in_3d=zero_state(per_rank, dp=replicas, zero=zero).total,
        heaviest_stage=zero_state(heaviest, dp=replicas, zero=zero).total,
    )


def _activation_row(request: PlanRequest, recompute: Recompute) -> ActivationRow:
    shape, layers = request.shape, request.shape.num_layers
    batch = MicroBatch(seq_len=request.seq_len, size=request.micro_batch_size)
    double = MicroBatch(seq_len=2 * request.seq_len, size=request.micro_batch_size)
    standard, own = standard_layer_bytes(shape, batch, recompute), layer_bytes(shape, batch, recompute)
    unfused = own if shape.block == "gpt" else llama_layer_bytes(shape, batch, recompute, "unfused")
    return ActivationRow(
        recompute=recompute,
        standard_layer=standard,
        standard_total=standard * layers,
        own_layer=own,
        own_total=own * layers,
        unfused_total=unfused * layers,
        doubling=standard_layer_bytes(shape, double, recompute) / standard,
        peak_stage=max(stage_memory(request, recompute), key=lambda stage: stage.total),
        fits=fits(request, recompute),
    )


def _bubble_rows(request: PlanRequest) -> tuple[BubbleRow, ...]:
    p, m = request.pp, request.num_micro_batches
    virtual = max(2, request.virtual_stages)
    schedules = (("gpipe", 1), ("1f1b", 1), ("interleaved", virtual))
    return tuple(
        BubbleRow(
            schedule=name if v == 1 else f"{name} v={v}",
            over_ideal=bubble_over_ideal(p, m, v),
            share=bubble_share(p, m, v),
            in_flight=tuple(in_flight(name, stage=stage, p=p, m=m, v=v) for stage in range(p)),  # type: ignore[arg-type]
        )
        for name, v in schedules
    )


def _token_budget(request: PlanRequest) -> TokenBudget:
    shape, tokens = request.shape, request.num_tokens
    chinchilla = chinchilla_tokens(request.num_params)
    size = corpus_bytes(tokens, shape.vocab_size)
    steps, whole = num_steps(tokens, request.tokens_per_step)
    return TokenBudget(
        chinchilla=chinchilla,
        planned=tokens,
        per_param=tokens / request.num_params,
        times_chinchilla=tokens / request.num_params / CHINCHILLA_RATIO,
        bytes_per_token=token_bytes(shape.vocab_size),
        corpus_bytes=size,
        bytes_per_rank=size / request.dp,
        tokens_per_step=request.tokens_per_step,
        steps=steps,
        whole_steps=whole,
        flops_per_token=flops_per_token(
            shape.num_params, num_layers=shape.num_layers, hidden_size=shape.hidden_size, seq_len=request.seq_len
        ),
    )


def _traffic(request: PlanRequest) -> tuple[AxisTraffic, ...]:
    heaviest = max(_stage_params(request))
    return (
        tensor_parallel_traffic(
            request.shape,
            tp=request.tp,
            pp=request.pp,
            seq_len=request.seq_len,
            micro_batch_size=request.micro_batch_size,
            num_micro_batches=request.num_micro_batches,
        ),
        data_parallel_traffic(
            heaviest, dp=request.dp, zero=request.zero, pp=request.pp, num_micro_batches=request.num_micro_batches
        ),
        pipeline_traffic(
            request.shape,
            pp=request.pp,
            tp=request.tp,
            seq_len=request.seq_len,
            micro_batch_size=request.micro_batch_size,
            num_micro_batches=request.num_micro_batches,
            virtual_stages=request.virtual_stages,
        ),
    )
