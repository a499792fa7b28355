from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokpipe.trainer.config import ScheduleConfig
from tokpipe.trainer.schedule import lr_at


@pytest.mark.parametrize(
    ("schedule", "step", "expected", "remark"),
    [
        (ScheduleConfig(warmup_steps=4), 0, 0.25, "the first step already learns"),
        (ScheduleConfig(warmup_steps=4), 3, 1.0, "the peak at the last warm-up step"),
        (ScheduleConfig(warmup_steps=4, min_ratio=0.1), 99, 0.1, "cosine ends at min_ratio"),
        (ScheduleConfig(warmup_steps=0, min_ratio=0.0), 49, 0.5, "half way down"),
        (ScheduleConfig(kind="wsd", warmup_steps=4, decay_steps=20), 79, 1.0, "stable until the decay"),
        (ScheduleConfig(kind="wsd", warmup_steps=4, decay_steps=20, min_ratio=0.2), 99, 0.2, "wsd ends at min_ratio"),
        (ScheduleConfig(kind="wsd", decay_steps=20, min_ratio=0.0), 84, 0.5, "1 - sqrt(5 / 20)"),
        (ScheduleConfig(kind="constant", warmup_steps=2), 99, 1.0, "constant stays"),
    ],
)
def test_lr_at(schedule, step, expected, remark):
    assert lr_at(step, schedule, peak=1.0, max_steps=100) == pytest.approx(expected), remark


@given(st.sampled_from(["cosine", "wsd", "constant"]), st.integers(0, 30), st.integers(1, 30), st.floats(0, 1))
def test_lr_rises_then_never_rises_again_and_stays_between_its_ends(kind, warmup, decay, low):
    schedule = ScheduleConfig(kind=kind, warmup_steps=warmup, decay_steps=decay if kind == "wsd" else 0, min_ratio=low)
    rates = [lr_at(step, schedule, peak=1.0, max_steps=80) for step in range(80)]
    top = max(warmup - 1, 0)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert all(later <= earlier + 1e-12 for earlier, later in zip(rates[top:], rates[top + 1 :], strict=False))
    assert all(0 < rate <= 1 or low == 0 for rate in rates) and min(rates[top:]) >= low - 1e-12


@pytest.mark.parametrize("step", [-1, 10])
def test_lr_at_refuses_steps_outside_the_run(step):
    with pytest.raises(ValueError, match=r"\[0, 10\)"):
        lr_at(step, ScheduleConfig(), peak=1.0, max_steps=10)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "wsd"}, "wsd alone has a decay phase"),
        ({"decay_steps": 5}, "wsd alone has a decay phase"),
        ({"warmup_steps": -1}, "must not be negative"),
        ({"min_ratio": 1.5}, r"min_ratio must be in \[0, 1\]"),
    ],
)
def test_schedule_config_refuses(values, message):
    with pytest.raises(ValueError, match=message):
        ScheduleConfig(**values)
