"""Loader states: what a checkpoint keeps of the data, and whether it may be resumed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokpipe.errors import StateMismatchError
from tokpipe.partition import HeldOutPlan, PartitionPlan, Phase, phase_differences

STATE_VERSION = 1


def make_state(plan: PartitionPlan | HeldOutPlan, step: int) -> dict[str, Any]:
    """Everything that decides what comes next, in plain JSON types. Says nothing of ranks."""
    return {
        "version": STATE_VERSION,
        "dataset_id": plan.dataset_id,
        "plan_hash": plan.plan_hash,
        "seed": plan.seed,
        "order": plan.order,
        "phases": [phase.as_dict() for phase in plan.phases],
        "step": step,
    }


def check_state(state: Mapping[str, Any], plan: PartitionPlan | HeldOutPlan, *, inside_step: bool = False) -> int:
    """The step of a state, once it is sure that it goes on with this plan.

    The plan has the state's phases, and may have more, from the first step on that has not begun.

    Args:
        state: as `make_state` made it.
        plan: what is asked now.
        inside_step: whether the state's step has begun and is to go on.

    Raises:
        StateMismatchError: naming the first thing that differs, with both values.
    """
    missing = [key for key in make_state(plan, 0) if key not in state]
    if missing:
        raise StateMismatchError(f"this is not the state of a TokenLoader: {', '.join(missing)} missing")
    if state["version"] != STATE_VERSION:
        raise StateMismatchError(f"the state has version {state['version']}, this tokpipe reads {STATE_VERSION}")
    if state["dataset_id"] != plan.dataset_id:
        raise StateMismatchError(f"the state belongs to dataset {state['dataset_id']}, open is {plan.dataset_id}")
    for name, here in (("seed", plan.seed), ("order", plan.order)):
        if state[name] != here:
            raise StateMismatchError(f"the state was made with {name} {state[name]!r}, asked is {here!r}: give the state's")
    if state["plan_hash"] != plan.plan_hash:
        raise StateMismatchError(
            f"the state's plan has hash {state['plan_hash']}, this one {plan.plan_hash}: it was made by another version of the "
            "arithmetic, or is of a held-out pass. Resume with the version that made it."
        )
    step = state["step"]
    if not isinstance(step, int) or step < 0:
        raise StateMismatchError(f"the state's step must be a number from 0 on, got {step!r}")
    _check_phases([Phase.from_dict(phase) for phase in state["phases"]], list(plan.phases), step + inside_step)
    return step


def _check_phases(there: list[Phase], here: list[Phase], first_free: int) -> None:
    advice = 'To go on as the state was: TokenDataset(..., phases=state["phases"]); a new phase may be added behind those.'
    for number, (one, other) in enumerate(zip(there, here, strict=False)):
        differences = phase_differences(one, other, "in the state", "asked")
        if differences:
            raise StateMismatchError(f"phase {number} differs: {'; '.join(differences)}. {advice}")
    for extra in there[len(here) :]:
        raise StateMismatchError(f"the state has one more phase, from step {extra.start}: {extra.as_dict()}. {advice}")
    for extra in here[len(there) :]:
        if extra.start < first_free:
            raise StateMismatchError(
                f"asked is one more phase, from step {extra.start}: {extra.as_dict()}, but the state was read without it up to "
                f"step {first_free}. {advice}"
            )
