"""Does a layout fit into a GPU, stage by stage, and which layouts would."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tokpipe.estimate.activations import RECOMPUTE, MicroBatch, Recompute, layer_bytes, logits_bytes
from tokpipe.estimate.bubble import bubble_over_ideal, in_flight
from tokpipe.estimate.memory import PARAM_BYTES, rank_layers, stage_params, zero_state
from tokpipe.estimate.request import PlanRequest, resolve_batch

RESERVE = 0.06
"""Share of a GPU left to the framework: CUDA context, communication buffers, fragmentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on one GPU of one pipeline stage at its fullest moment."""

    stage: int
    num_params: int
    """Per tensor-parallel rank."""
    state: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """Sum in bytes."""
        return self.state + self.activations + self.logits


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A layout that fits, as flags of `tokpipe plan` and `tokpipe train`."""

    tp: int
    pp: int
    dp: int
    zero: int
    recompute: Recompute
    bytes_per_gpu: float
    cost: float
    """Rough share of the step lost to recomputation, bubble and communication: what the list is sorted by."""


def stage_memory(request: PlanRequest, recompute: Recompute) -> tuple[StageMemory, ...]:
    """Memory of each pipeline stage; the fused attention of the shape's block, exact parameter counts.

    With a pipeline, ZeRO-2 and 3 keep whole gradients while a step runs: micro-batches accumulate before they are reduced; and
    ZeRO-3 the gathered parameters, beside the shards. With recomputation, the activations of one layer come back at a time.
    """
    batch = MicroBatch(seq_len=request.seq_len, size=request.micro_batch_size, tp=request.tp)
    per_layer = layer_bytes(request.shape, batch, recompute)
    again = layer_bytes(request.shape, batch, "none") - per_layer
    params = stage_params(request.shape, tp=request.tp, pp=request.pp, virtual_stages=request.virtual_stages)
    layers = rank_layers(request.shape.num_layers, pp=request.pp, virtual_stages=request.virtual_stages)
    stages = []
    for stage, count in enumerate(params):
        state = zero_state(count, dp=request.dp, zero=request.zero)
        gathered = PARAM_BYTES * count if request.pp > 1 and request.zero == 3 and request.dp > 1 else 0
        grads = max(state.grads, 2.0 * count) if request.pp > 1 else state.grads
        flight = in_flight(request.schedule, stage=stage, p=request.pp, m=request.num_micro_batches, v=request.virtual_stages)
        stages.append(
            StageMemory(
                stage=stage,
                num_params=count,
                state=state.params + gathered + grads + state.optimizer,
                activations=flight * layers[stage] * per_layer + again,
                logits=logits_bytes(request.shape, batch) if stage == request.pp - 1 else 0.0,
            )
        )
    return tuple(stages)


def peak_bytes(request: PlanRequest, recompute: Recompute) -> float:
    """Bytes on the fullest GPU."""
    return max(stage.total for stage in stage_memory(request, recompute))


def fits(request: PlanRequest, recompute: Recompute) -> bool:
    """Whether the fullest GPU leaves the reserve free."""
    return peak_bytes(request, recompute) <= request.gpu_bytes * (1 - RESERVE)


def _candidates(request: PlanRequest) -> list[tuple[int, int]]:
    tps = [
        t for t in (1, 2, 4, 8, 16) if not (request.gpus_per_node % t or request.shape.num_kv_heads % t or request.seq_len % t)
    ]
    pps = [p for p in (1, 2, 4, 8, 16, 32) if request.shape.num_layers % p == 0]
    return [(t, p) for t in tps for p in pps if request.gpus % (t * p) == 0]


def _cost(request: PlanRequest, recompute: Recompute) -> float:
    """Shares of a step, roughly: full recomputation 1/3, a bubble its share, tp and ZeRO-3 by how often they block."""
    lost = {"none": 0.0, "selective": 0.02, "full": 0.33}[recompute]
    lost += bubble_over_ideal(request.pp, request.num_micro_batches)
    lost += 0.04 * (request.tp.bit_length() - 1)
    across_nodes = request.dp * request.tp > request.gpus_per_node
    return lost + {0: 0.0, 1: 0.0, 2: 0.02, 3: 0.12 if across_nodes else 0.06}[request.zero]


def suggest_layouts(request: PlanRequest, *, limit: int = 5) -> tuple[Suggestion, ...]:
    """Layouts of the same model, batch and GPUs that fit, the best of each (tp, pp), cheapest first; empty if none does."""
    found = []
    for tp, pp in _candidates(request):
        dp = request.gpus // (tp * pp)
        batch = request.global_batch_size
        if batch % (dp * request.micro_batch_size):
            continue
        batch, count, _ = resolve_batch(
            dp=dp, micro_batch_size=request.micro_batch_size, global_batch_size=batch, num_micro_batches=None, default=batch
        )
        if count < pp:
            continue  # 1F1B would not fill the pipeline; the trainer refuses it.
        for zero in (0, 1, 2, 3) if pp == 1 else (0, 1):
            layout = replace(request, tp=tp, pp=pp, dp=dp, zero=zero, num_micro_batches=count, schedule="1f1b", virtual_stages=1)
            fitting = next((r for r in RECOMPUTE if fits(layout, r)), None)
            if fitting is not None:
                found.append(
                    Suggestion(
                        tp=tp,
                        pp=pp,
                        dp=dp,
                        zero=zero,
                        recompute=fitting,
                        bytes_per_gpu=peak_bytes(layout, fitting),
                        cost=_cost(layout, fitting),
                    )
                )
    best: dict[tuple[int, int], Suggestion] = {}
    for suggestion in sorted(found, key=lambda s: (s.cost, s.zero)):
        best.setdefault((suggestion.tp, suggestion.pp), suggestion)
    return tuple(list(best.values())[:limit])
