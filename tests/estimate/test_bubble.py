from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokpipe.estimate import bubble_over_ideal, bubble_share, in_flight


@pytest.mark.parametrize(
    ("p", "m", "v", "over_ideal", "remark"),
    [
        (8, 8, 1, 0.875, "as many micro-batches as stages"),
        (8, 32, 1, 0.21875, "four times as many"),
        (8, 16, 1, 0.4375, "twice as many"),
        (8, 8, 2, 0.4375, "two virtual stages halve it"),
        (1, 4, 1, 0.0, "no pipeline"),
    ],
)
def test_bubble_over_ideal(p, m, v, over_ideal, remark):
    assert bubble_over_ideal(p, m, v) == over_ideal, remark


@given(st.integers(1, 64), st.integers(1, 512), st.integers(1, 8))
def test_both_definitions_say_the_same(p, m, v):
    over = bubble_over_ideal(p, m, v)
    assert bubble_share(p, m, v) == pytest.approx(over / (1 + over))


@pytest.mark.parametrize(
    ("schedule", "v", "expected"),
    [("gpipe", 1, [8, 8, 8, 8]), ("1f1b", 1, [4, 3, 2, 1]), ("interleaved", 2, [5.5, 4.5, 3.5, 2.5])],
)
def test_in_flight_of_four_stages_and_eight_micro_batches(schedule, v, expected):
    assert [in_flight(schedule, stage=stage, p=4, m=8, v=v) for stage in range(4)] == expected


def test_in_flight_is_never_more_than_there_are():
    assert in_flight("1f1b", stage=0, p=8, m=2) == 2
    assert in_flight("interleaved", stage=0, p=4, m=2, v=2) == 2


@pytest.mark.parametrize(("p", "m", "v"), [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_bubble_refuses_nothing_at_all(p, m, v):
    with pytest.raises(ValueError, match="at least 1"):
        bubble_over_ideal(p, m, v)


def test_in_flight_refuses_an_unknown_stage():
    with pytest.raises(ValueError, match=r"\[0, 4\)"):
        in_flight("1f1b", stage=4, p=4, m=4)
