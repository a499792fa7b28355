"""What fits, what does not, why more data-parallel GPUs never help, and what would."""

from __future__ import annotations

from tokpipe.estimate.numbers import gigabytes, rough_gigabytes
from tokpipe.estimate.plan import Plan


def verdict_lines(plan: Plan) -> list[str]:
    """The table of recomputation choices for the asked layout, then advice."""
    request = plan.request
    usable = request.gpu_bytes * (1 - plan.reserve)
    lines = [
        f"The fullest GPU of dp {request.dp} x tp {request.tp} x pp {request.pp}, ZeRO-{request.zero}, exact counts, fused "
        f"attention; {plan.reserve:.0%} of {gigabytes(request.gpu_bytes)} GB kept for the framework:",
        f"{'recompute':<12}{'state':>10}{'activations':>13}{'logits':>9}{'sum GB':>10}",
    ]
    for row in plan.activations:
        stage = row.peak_stage
        verdict = "fits" if row.fits else f"does not fit: {rough_gigabytes(stage.total - usable)} GB too much"
        where = f" (stage {stage.stage})" if request.pp > 1 else ""
        lines.append(
            f"{row.recompute:<12}{gigabytes(stage.state):>10}{rough_gigabytes(stage.activations):>13}"
            f"{rough_gigabytes(stage.logits):>9}{gigabytes(stage.total):>10}   {verdict}{where}"
        )
    if request.pp > 1 and request.zero >= 2:
        lines.append(
            "With a pipeline, gradients stay whole until the last micro-batch: ZeRO-2 and 3 shard them only between steps"
            + ("; so do the parameters that ZeRO-3 gathers." if request.zero == 3 else ".")
        )
    return [*lines, *_data_parallel_lesson(plan), *_advice(plan)]


def _data_parallel_lesson(plan: Plan) -> list[str]:
    request = plan.request
    if plan.replica_bytes <= request.gpu_bytes:
        return []
    return [
        f"Plain data parallelism never fits: every GPU holds the whole {plan.replica_bytes / 1e9:,.0f} GB; more GPUs "
        "split the batch, never the state. Two kinds of remedy:",
        "  (a) shard the model state over the replicas: ZeRO-1, 2, 3; (b) cut the model itself: tensor and pipeline parallelism.",
    ]


def _advice(plan: Plan) -> list[str]:
    request = plan.request
    any_fits = any(row.fits for row in plan.activations)
    head = "Layouts that fit, cheapest first:" if any_fits else "It does not fit. These layouts would, cheapest first:"
    if not plan.suggestions:
        return [
            f"No layout of {request.gpus} GPUs with {gigabytes(request.gpu_bytes)} GB fits this model and batch: "
            "use more GPUs (they help sharded layouts), a smaller "
            "--micro-batch-size or --seq-len, or a --global-batch-size that dp divides."
        ]
    rows = [
        f"  --tp {s.tp} --pp {s.pp} --dp {s.dp} --zero {s.zero}, recompute {s.recompute}: "
        f"{gigabytes(s.bytes_per_gpu)} GB on the fullest GPU"
        for s in plan.suggestions
    ]
    return [head, *rows]
