"""A plan as text: the numbers of the rules of thumb first, then the exact ones."""

from __future__ import annotations

from tokpipe.estimate.activations import RECOMPUTE
from tokpipe.estimate.compute import FULL_RECOMPUTE, FULL_RECOMPUTE_EARLY_STOP, training_days
from tokpipe.estimate.grid import grid_lines
from tokpipe.estimate.numbers import count, gigabytes, megabytes, rough_gigabytes, storage
from tokpipe.estimate.plan import Plan
from tokpipe.estimate.verdict import verdict_lines

H100_PEAK = 989e12
TYPICAL_MFU = 0.4


def render_plan(plan: Plan) -> str:
    """The whole plan, sections in the order of a run: memory, layout, tokens."""
    sections = [
        ("", _header(plan)),
        ("Model state", _state(plan)),
        ("Activations", _activations(plan)),
        ("Does it fit", verdict_lines(plan)),
        ("Pipeline bubble", _bubble(plan)),
        ("Tokens and steps", _tokens(plan)),
        ("Communication per step and GPU", _traffic(plan)),
        ("Grid", _grid(plan)),
    ]
    lines: list[str] = []
    for title, body in sections:
        lines += [*([title, "-" * len(title)] if title else []), *body, ""]
    return "\n".join(lines).rstrip()


def _header(plan: Plan) -> list[str]:
    request, shape = plan.request, plan.request.shape
    queries = "" if shape.num_kv_heads == shape.num_heads else f" ({shape.num_kv_heads} for keys and values)"
    schedule = "" if request.pp == 1 else f", {request.schedule}"
    return [
        f"Model    {shape.name}: {shape.num_layers} layers, hidden {shape.hidden_size:,}, {shape.num_heads} heads{queries}, "
        f"ffn {shape.ffn_size:,}, vocabulary {shape.vocab_size:,}",
        f"         {count(request.num_params)} parameters ({request.num_params:,.0f}); counted exactly, {plan.exact_params:,}",
        f"Cluster  {request.gpus:,} GPUs with {gigabytes(request.gpu_bytes)} GB, {request.gpus_per_node} to a node "
        '(GB is 10^9 bytes; an "80 GB" card has a little more)',
        f"Layout   dp {request.dp} x tp {request.tp} x pp {request.pp}, ZeRO-{request.zero}{schedule}",
        f"Batch    {request.global_batch_size:,} samples of {request.seq_len:,} tokens = {request.dp} replicas x "
        f"{request.num_micro_batches} micro-batches x {request.micro_batch_size}",
        *(f"Note     {note}" for note in request.notes),
    ]


def _state(plan: Plan) -> list[str]:
    request = plan.request
    lines = [
        f"{plan.bytes_per_param} bytes per parameter: 2 weight + 2 gradient (bf16) + 4 master + 4 momentum + 4 variance (fp32)",
        f"One replica: {plan.replica_bytes / 1e9:,.0f} GB, which fills {plan.gpus_to_hold} GPU(s) before a single activation",
        "",
        f"{'GB per GPU':<24}{f'over {request.gpus} GPUs':>16}{'exact count':>14}{'this layout':>14}{'fullest stage':>15}",
    ]
    names = ("plain data parallel", "ZeRO-1 (optimizer)", "ZeRO-2 (+ gradients)", "ZeRO-3 (+ parameters)")
    for row, name in zip(plan.state, names, strict=True):
        mark = " <-" if row.zero == request.zero else ""
        amounts = (row.plain, row.exact, row.in_3d, row.heaviest_stage)
        lines.append(
            f"{name:<24}" + "".join(f"{gigabytes(a):>{w}}" for a, w in zip(amounts, (16, 14, 14, 15), strict=True)) + mark
        )
    lines.append(
        f"This layout: 16 x parameters / (tp {request.tp} x pp {request.pp}), ZeRO over dp {request.dp}; "
        "the fullest stage carries the embedding or the head."
    )
    if request.pp > 1:
        lines.append(f"Parameters per rank and stage: {', '.join(f'{n:,}' for n in plan.stage_params)}")
    return lines


def _activations(plan: Plan) -> list[str]:
    request = plan.request
    layers = request.shape.num_layers
    lines = [
        f"One micro-batch of {request.micro_batch_size} x {request.seq_len:,} tokens through all {layers} layers, nothing split. "
        "The standard block is",
        "s b h (34 + 5 a s / h), unfused attention; full recomputation keeps 2 s b h a layer, the layer's input.",
        "",
        f"{'recompute':<12}{'MB/layer':>10}{'MB total':>12}{'GB total':>10}"
        f"   {'own block, fused: MB/layer':>26}{'GB total':>10}{'unfused':>10}",
    ]
    for row in plan.activations:
        lines.append(
            f"{row.recompute:<12}{megabytes(row.standard_layer):>10}{megabytes(row.standard_total):>12}"
            f"{rough_gigabytes(row.standard_total):>10}   {megabytes(row.own_layer):>26}{rough_gigabytes(row.own_total):>10}"
            f"{rough_gigabytes(row.unfused_total):>10}"
        )
    none, full = plan.activations[0], plan.activations[RECOMPUTE.index("full")]
    zero_row = plan.state[request.zero]
    lines += [
        f"Full recomputation: {none.standard_total / full.standard_total:.0f}x less, for one more forward pass: "
        f"{FULL_RECOMPUTE:.0%} more compute ({FULL_RECOMPUTE_EARLY_STOP:.0%} of matrix products as PyTorch stops early).",
        "Selective recomputation repeats only the attention core.",
        f"Doubling the sequence to {2 * request.seq_len:,}: {none.doubling:.2f}x, not 2x: scores grow with its square.",
        f"State of ZeRO-{request.zero} over {request.gpus} GPUs + activations without recomputation: "
        f"{gigabytes(zero_row.plain + none.standard_total)} GB before logits and framework.",
    ]
    return lines


def _bubble(plan: Plan) -> list[str]:
    request = plan.request
    p, m = request.pp, request.num_micro_batches
    if p == 1:
        return ["No pipeline (pp 1), no bubble."]
    lines = [
        f"p = {p} stages, m = {m} micro-batches: (p - 1) / m",
        f"{'schedule':<18}{'idle / ideal':>14}{'share of step':>15}   micro-batches in flight, stage by stage",
    ]
    for row in plan.bubble:
        flight = ", ".join(f"{n:g}" for n in row.in_flight[:8]) + (", ..." if p > 8 else "")
        lines.append(f"{row.schedule:<18}{_fraction(row.over_ideal):>14}{row.share:>15.3f}   {flight}")
    lines.append(
        "1F1B idles as long as GPipe but holds fewer micro-batches, so a larger m fits; v virtual stages divide idle time by v."
    )
    return lines


def _fraction(value: float) -> str:
    """Three decimals, four where the value is exact there (0.875, 0.219, 0.4375)."""
    four = f"{value:.4f}"
    return four if float(four) == value and not four.endswith("0") else f"{value:.3f}"


def _tokens(plan: Plan) -> list[str]:
    request, budget = plan.request, plan.tokens
    published = (
        f" ({request.shape.name} was trained on {count(request.shape.published_tokens)})"
        if request.shape.published_tokens
        else ""
    )
    days = training_days(
        budget.planned, flops_each=budget.flops_per_token, num_gpus=request.gpus, peak=H100_PEAK, utilisation=TYPICAL_MFU
    )
    return [
        f"Compute-optimal (20 per parameter)   {count(budget.chinchilla)} tokens",
        f"Planned                              {count(budget.planned)} tokens{published}: {budget.per_param:.0f} per parameter, "
        f"{budget.times_chinchilla:.{0 if budget.times_chinchilla >= 3 else 1}f}x the compute-optimal number",
        f"Tokenized corpus                     {storage(budget.corpus_bytes)} at {budget.bytes_per_token} bytes a token "
        f"(vocabulary {request.shape.vocab_size:,})",
        f"Each of {request.dp} data-parallel ranks reads  {storage(budget.bytes_per_rank)}",
        f"Global batch                         {request.global_batch_size:,} x {request.seq_len:,} = "
        f"{budget.tokens_per_step:,} tokens",
        f"Optimizer steps                      {budget.steps:,} ({budget.whole_steps:,} whole ones)",
        f"Work                                 {budget.flops_per_token:.3g} FLOP a token (6 N + 12 L h s); "
        f"about {days:,.0f} days on {request.gpus} H100 at {TYPICAL_MFU:.0%} of peak",
    ]


def _traffic(plan: Plan) -> list[str]:
    lines = [f"{'axis':<6}{'ranks':>6}{'sent':>12}{'operations':>12}   belongs on"]
    for axis in plan.traffic:
        lines.append(f"{axis.axis:<6}{axis.ranks:>6}{storage(axis.bytes_per_step):>12}{axis.operations:>12,}   {axis.tier}")
        lines.append(f"{'':<39}{axis.what}")
    return lines


def _grid(plan: Plan) -> list[str]:
    request = plan.request
    return [
        "rank = (pp x dp_size + dp) x tp_size + tp: tensor parallelism innermost, pipeline outermost. Only dp splits the data.",
        *grid_lines(dp=request.dp, tp=request.tp, pp=request.pp, gpus_per_node=request.gpus_per_node),
    ]
