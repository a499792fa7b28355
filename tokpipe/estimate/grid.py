"""Which rank holds what: the 3D grid with tensor parallelism innermost and the pipeline outermost."""

from __future__ import annotations


def coordinate(rank: int, *, dp: int, tp: int) -> tuple[int, int, int]:
    """(pp, dp, tp) of a global rank.

    Neighbouring ranks share a node, so the axis that talks most, tp, varies fastest.

    Example:
        `coordinate(5, dp=2, tp=2) == (1, 0, 1)`
    """
    return rank // (dp * tp), rank // tp % dp, rank % tp


def layers_per_stage(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Layers of each stage; those left over go to the middle, as the first stage has the embedding and the last the head.

    Example:
        `layers_per_stage(6, 4) == (1, 2, 2, 1)`

    Raises:
        ValueError: if a stage would stay empty.
    """
    if not 1 <= num_stages <= num_layers:
        raise ValueError(f"{num_layers} layers cannot fill {num_stages} pipeline stages")
    each, left = divmod(num_layers, num_stages)
    first = (num_stages - left) // 2
    return tuple(each + (first <= stage < first + left) for stage in range(num_stages))


def grid_lines(*, dp: int, tp: int, pp: int, gpus_per_node: int = 8, max_rows: int = 16) -> list[str]:
    """The grid as text: one line per pipeline stage and replica, the tensor-parallel ranks in a row.

    Only the first and last replicas are shown where there are more than `max_rows` lines.
    """
    rows = []
    for stage in range(pp):
        for replica in range(dp):
            first = (stage * dp + replica) * tp
            node, last = first // gpus_per_node, (first + tp - 1) // gpus_per_node
            ranks = f"{first}" if tp == 1 else f"{first}-{first + tp - 1}"
            nodes = f"{node}" if node == last else f"{node}-{last}"
            rows.append(f"{stage:>8}  {replica:>8}  {ranks:>14}  {nodes:>6}")
    if len(rows) > max_rows:
        half = max_rows // 2
        rows = [*rows[:half], f"     ... {len(rows) - 2 * half:,} more lines ...", *rows[-half:]]
    return [f"{'pp stage':>8}  {'dp rank':>8}  {'ranks (tp)':>14}  {'node':>6}", *rows]
