"""How often each task was tried, why it failed, and when to give it up: the same book for every engine."""

from __future__ import annotations

import logging
import traceback

from tokpipe.engine.base import Tasks
from tokpipe.errors import TaskFailedError, TokpipeError

logger = logging.getLogger(__name__)


def describe(error: BaseException) -> str:
    """Type and message of an error; for one that nobody raised on purpose also where it came from."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, TokpipeError):
        return text
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({frame.filename}:{frame.lineno})"


class Attempts:
    """Counts failures by task; a task that failed `max_attempts` times is not run again, the others go on."""

    def __init__(self, max_attempts: int):
        if max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, got {max_attempts}")
        self.max_attempts = max_attempts
        self._failures: dict[int, int] = {}
        self._reasons: dict[int, str] = {}

    def failed(self, index: int, name: str, reason: str) -> None:
        """Book one failure and say so in the log."""
        count = self._failures.get(index, 0) + 1
        self._failures[index], self._reasons[index] = count, reason
        again = "giving it up" if self.exhausted(index) else "it will run again"
        logger.warning("%s failed (attempt %d of %d), %s: %s", name, count, self.max_attempts, again, reason)

    def exhausted(self, index: int) -> bool:
        """Whether this task is not to be run again."""
        return self._failures.get(index, 0) >= self.max_attempts

    def runnable(self, missing: list[int]) -> list[int]:
        """The tasks of `missing` that may still be tried, in the same order."""
        return [index for index in missing if not self.exhausted(index)]

    def raise_if_given_up(self, tasks: Tasks, missing: list[int]) -> None:
        """Raise for every missing task that was given up.

        Raises:
            TaskFailedError: with the name and last reason of each (the first ten in full).
        """
        given_up = sorted(index for index in missing if self.exhausted(index))
        if not given_up:
            return
        lines = [f"  {tasks.name(index)}: {self._reasons[index]}" for index in given_up[:10]]
        if len(given_up) > 10:
            lines.append(f"  and {len(given_up) - 10} more")
        raise TaskFailedError(
            f"{len(given_up)} of {len(tasks)} tasks failed {self.max_attempts} times each; every other task is done. "
            "Mend the cause and run the same command again: only these are redone.\n" + "\n".join(lines)
        )
