"""The book of failures."""

from __future__ import annotations

import pytest

from tokpipe.engine.attempts import Attempts
from tokpipe.errors import TaskFailedError


class Named:
    def __len__(self):
        return 40

    def name(self, index):
        return f"task-{index}"


def test_a_task_is_given_up_after_its_last_attempt():
    attempts = Attempts(2)
    attempts.failed(7, "task-7", "once")
    assert attempts.runnable([9, 7]) == [9, 7]
    attempts.failed(7, "task-7", "twice")
    assert attempts.runnable([9, 7]) == [9]
    with pytest.raises(TaskFailedError, match=r"1 of 40 tasks failed(.|\n)*task-7: twice \(2 times\)"):
        attempts.raise_if_given_up(Named(), [7])


def test_nothing_is_raised_for_a_task_that_ended_after_all():
    attempts = Attempts(1)
    attempts.failed(7, "task-7", "the result came, then the process died")
    attempts.raise_if_given_up(Named(), [])


def test_many_failures_are_summed_up():
    attempts = Attempts(1)
    for index in range(13):
        attempts.failed(index, f"task-{index}", "no disk")
    with pytest.raises(TaskFailedError, match="and 3 more"):
        attempts.raise_if_given_up(Named(), list(range(13)))


def test_what_a_retry_will_not_mend_is_given_up_at_once():
    attempts = Attempts(3)
    assert not attempts.failed(7, "task-7", "bad input", final=True)
    assert attempts.runnable([9, 7]) == [9]
    with pytest.raises(TaskFailedError, match=r"task-7: bad input\n"):
        attempts.raise_if_given_up(Named(), [7])


def test_at_least_one_attempt():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Attempts(0)
