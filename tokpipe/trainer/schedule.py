"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from tokpipe.trainer.config import ScheduleConfig


def lr_at(step: int, schedule: ScheduleConfig, *, peak: float, max_steps: int) -> float:
    """Learning rate of a step (counted from 0).

    Warm-up rises linearly and reaches the peak at its last step. Then `cosine` falls in half a cosine to `min_ratio` of the
    peak at the last step; `wsd` stays and falls as 1 - sqrt over the last `decay_steps`; `constant` stays.
    Source: SGDR, arXiv:1608.03983; the 1 - sqrt decay: Hägele et al., arXiv:2405.18392.

    Raises:
        ValueError: if `step` is not in [0, max_steps).

    Example:
        `lr_at(0, ScheduleConfig(warmup_steps=4), peak=1.0, max_steps=10) == 0.25`
    """
    if not 0 <= step < max_steps:
        raise ValueError(f"step must be in [0, {max_steps}), got {step}")
    if step < schedule.warmup_steps:
        return peak * (step + 1) / schedule.warmup_steps
    low = schedule.min_ratio
    if schedule.kind == "cosine":
        progress = _progress(step, schedule.warmup_steps, max_steps)
        return peak * (low + (1 - low) * (1 + math.cos(math.pi * progress)) / 2)
    if schedule.kind == "wsd":
        progress = _progress(step, max_steps - schedule.decay_steps, max_steps)
        return peak * (low + (1 - low) * (1 - math.sqrt(progress)))
    return peak


def _progress(step: int, start: int, stop: int) -> float:
    """0 before `start`, 1 at `stop - 1`, linear between."""
    return min(1.0, max(0.0, (step + 1 - start) / (stop - start)))
