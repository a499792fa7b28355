"""Bytes that one rank sends per optimizer step along each axis, and the network tier each axis belongs on.

Ring collectives: an all-gather or reduce-scatter of M bytes over n ranks moves M (n - 1) / n through each; an all-reduce is both.
Source: Rajbhandari et al., arXiv:1910.02054, section 7; Shoeybi et al., arXiv:1909.08053, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokpipe.estimate.shapes import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTraffic:
    """What one mesh axis moves."""

    axis: str
    ranks: int
    bytes_per_step: float
    """Sent by one rank in one optimizer step."""
    operations: int
    """Collectives, or sends, that one rank takes part in per step."""
    tier: str
    what: str


def data_parallel_traffic(num_params: float, *, dp: int, zero: int, pp: int = 1, num_micro_batches: int = 1) -> AxisTraffic:
    """Gradients, and under ZeRO-3 parameters too, of the `num_params` parameters that one rank's replica share holds.

    In units of the parameter count (times 2 bytes): plain data parallelism 2 (an all-reduce), ZeRO-1 and 2 also 2 (reduce-scatter
    the gradients, all-gather the parameters), ZeRO-3 3 (gather for forward, gather for backward, reduce-scatter).

    That is with one micro-batch. With m, ZeRO-2 reduce-scatters after each (m + 1: it may not keep whole gradients) and ZeRO-3
    does everything again (3 m). A pipeline reduces once a step; there ZeRO-3 gathers for every forward pass and once for the
    backward passes (m + 2).

    Example:
        `data_parallel_traffic(1e9, dp=64, zero=3, num_micro_batches=32).operations == 96`
    """
    m = num_micro_batches
    passes = (2, 2, m + 1, 3 * m)[zero] if pp == 1 else (2, 2, 2, m + 2)[zero]
    what = {
        0: "one gradient all-reduce",
        1: "gradient reduce-scatter + parameter all-gather: as much as the all-reduce",
        2: "gradient reduce-scatter + parameter all-gather: as much as the all-reduce",
        3: "parameter all-gather in forward and in backward + gradient reduce-scatter: half as much again",
    }[zero]
    if passes > 3:
        what += f"; with {m} micro-batches {passes} passes over the parameters, not {3 if zero == 3 else 2}"
    return AxisTraffic(
        axis="dp",
        ranks=dp,
        bytes_per_step=passes * 2 * num_params * (dp - 1) / dp,
        operations=passes if dp > 1 else 0,
        tier=f"any: {'once a step' if passes == 2 else 'every micro-batch'}, hidden behind the backward pass"
        if zero < 3
        else "fast: on the path of every layer, best within a node",
        what=what,
    )


def tensor_parallel_traffic(
    shape: ModelShape, *, tp: int, pp: int, seq_len: int, micro_batch_size: int, num_micro_batches: int
) -> AxisTraffic:
    """Two all-reduces in forward and two in backward per layer and micro-batch, of 2 s b h bytes each.

    With sequence parallelism each all-reduce becomes an all-gather and a reduce-scatter: the same bytes.
    """
    layers = -(-shape.num_layers // pp)
    operations = 4 * layers * num_micro_batches if tp > 1 else 0
    message = 2 * seq_len * micro_batch_size * shape.hidden_size
    return AxisTraffic(
        axis="tp",
        ranks=tp,
        bytes_per_step=operations * message * 2 * (tp - 1) / tp,
        operations=operations,
        tier="NVLink, inside one node: every one blocks the layer",
        what="4 all-reduces per layer and micro-batch",
    )


def pipeline_traffic(
    shape: ModelShape, *, pp: int, tp: int, seq_len: int, micro_batch_size: int, num_micro_batches: int, virtual_stages: int = 1
) -> AxisTraffic:
    """One activation forward and one gradient back per micro-batch and stage boundary, split over the tensor-parallel ranks."""
    operations = 2 * num_micro_batches * virtual_stages if pp > 1 else 0
    return AxisTraffic(
        axis="pp",
        ranks=pp,
        bytes_per_step=operations * 2 * seq_len * micro_batch_size * shape.hidden_size / tp,
        operations=operations,
        tier="InfiniBand, between nodes: few, point to point",
        what="an activation forward and a gradient back per micro-batch and boundary",
    )
