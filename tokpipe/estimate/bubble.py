"""The pipeline bubble: idle time per schedule, and how many micro-batches a stage keeps in flight.

With p stages and m micro-batches a step takes m + p - 1 slots of which m are work. The usual figure divides the idle p - 1 by the
ideal m; as a share of the step it is (p - 1) / (m + p - 1). Giving every rank v smaller stages divides the idle time by v.
Source: Huang et al., "GPipe", arXiv:1811.06965; Narayanan et al., arXiv:2104.04473, section 2.2.
"""

from __future__ import annotations

from typing import Literal

Schedule = Literal["gpipe", "1f1b", "interleaved"]


def _check(p: int, m: int, v: int) -> None:
    if p < 1 or m < 1 or v < 1:
        raise ValueError(f"stages, micro-batches and virtual stages must be at least 1, got {p}, {m}, {v}")


def bubble_over_ideal(p: int, m: int, v: int = 1) -> float:
    """Idle time over ideal compute time, (p - 1) / (v m).

    Example:
        `bubble_over_ideal(8, 8) == 0.875`; `bubble_over_ideal(8, 32) == 0.21875`

    Raises:
        ValueError: if an argument is below 1.
    """
    _check(p, m, v)
    return (p - 1) / (v * m)


def bubble_share(p: int, m: int, v: int = 1) -> float:
    """Idle time as a share of the whole step, (p - 1) / (v m + p - 1).

    Raises:
        ValueError: if an argument is below 1.
    """
    _check(p, m, v)
    return (p - 1) / (v * m + p - 1)


def in_flight(schedule: Schedule, *, stage: int, p: int, m: int, v: int = 1) -> float:
    """Micro-batches whose activations `stage` of `p` holds at once, in units of one whole stage's activations.

    GPipe holds all m. 1F1B holds p, p - 1, ..., 1. The interleaved schedule holds, in chunks of 1/v stage,
    2 (p - stage - 1) + (v - 1) p + 1.

    Example:
        `[in_flight("1f1b", stage=i, p=4, m=8) for i in range(4)] == [4, 3, 2, 1]`

    Raises:
        ValueError: if an argument is below 1 or `stage` is not in [0, p).
    """
    _check(p, m, v)
    if not 0 <= stage < p:
        raise ValueError(f"stage must be in [0, {p}), got {stage}")
    if schedule == "gpipe":
        return float(m)
    if schedule == "1f1b" or p == 1:
        return float(min(m, p - stage))
    chunks = 2 * (p - stage - 1) + (v - 1) * p + 1
    return min(m * v, chunks) / v
