"""How often each task was tried, why it failed, and when to give it up: the same book for every engine."""

from __future__ import annotations

import logging
import traceback

from tokpipe.engine.base import Tasks
from tokpipe.errors import TaskFailedError, TokpipeError

logger = logging.getLogger(__name__)

MAX_NAMED = 10


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
        self._counts: dict[int, int] = {}
        self._reasons: dict[int, str] = {}
        self._given_up: set[int] = set()

    def failed(self, index: int, name: str, reason: str, *, final: bool = False) -> bool:
        """Book one failure and say so in the log; `final` gives the task up at once. Returns whether it may run again."""
        count = self._counts.get(index, 0) + 1
        self._counts[index], self._reasons[index] = count, reason
        if final or count >= self.max_attempts:
            self._given_up.add(index)
        again = index not in self._given_up
        logger.warning(
            "%s failed (attempt %d of %d), %s: %s",
            name,
            count,
            self.max_attempts,
            "it will run again" if again else "giving it up",
            reason,
        )
        return again

    def runnable(self, missing: list[int]) -> list[int]:
        """The tasks of `missing` that may still be tried, in the same order."""
        return [index for index in missing if index not in self._given_up]

    def raise_if_given_up(self, tasks: Tasks, missing: list[int]) -> None:
        """Raise for every missing task that was given up.

        Raises:
            TaskFailedError: with the name and last reason of each (the first ten in full).
        """
        given_up = sorted(set(missing) & self._given_up)
        if not given_up:
            return
        lines = [f"  {tasks.name(index)}: {self._reasons[index]}{self._times(index)}" for index in given_up[:MAX_NAMED]]
        if len(given_up) > MAX_NAMED:
            lines.append(f"  and {len(given_up) - MAX_NAMED} more")
        raise TaskFailedError(
            f"{len(given_up)} of {len(tasks)} tasks failed; every other one is done.\n"
            + "\n".join(lines)
            + "\nMend the cause and run the same command again: only what is missing is done."
        )

    def _times(self, index: int) -> str:
        return f" ({self._counts[index]} times)" if self._counts[index] > 1 else ""
