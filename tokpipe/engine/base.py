"""The contract between the work and the engine that runs it.

The work is a numbered list of idempotent tasks that publish their results atomically; what is done is read from the results
alone. An engine knows no more: it asks which tasks are missing, runs them somewhere, and asks again until none is. A `TaskSpec`
is how a task list crosses a process or a machine: a few strings, opened again on the other side.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Counters:
    """What a task has done since its last report. Small, addable, picklable: all that a worker ever sends back."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0
    """Bytes of text in the terms of the inventory (compressed size for compressed files), so that shares add up to it."""
    decoded_bytes: int = 0
    """Bytes of UTF-8 text as it was worked on, whatever the compression: what a speed is made of."""

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.documents + other.documents,
            self.tokens + other.tokens,
            self.text_bytes + other.text_bytes,
            self.decoded_bytes + other.decoded_bytes,
        )

    def __neg__(self) -> Counters:
        return Counters(-self.documents, -self.tokens, -self.text_bytes, -self.decoded_bytes)


Report = Callable[[Counters], None]


class Tasks(Protocol):
    """One stage's numbered tasks. Opening is cheap; the object may keep costly state (a tokenizer) between `run` calls."""

    def __len__(self) -> int:
        """Number of tasks, finished ones included."""
        ...

    def missing(self) -> list[int]:
        """Tasks without a result, largest first; read from the results on disk every time it is called."""
        ...

    def size(self, index: int) -> int:
        """Bytes of work in one task, in the same terms as `Counters.text_bytes`."""
        ...

    def name(self, index: int) -> str:
        """What a person calls the task in a log or an error, e.g. `tokenize-00017 (hi, 1.0 GiB)`."""
        ...

    def run(self, index: int, report: Report) -> None:
        """Do one task and publish its result; a task that is already done returns at once."""
        ...


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """How to open a task list in any process: `opener` is `package.module:function`, called with `out` and `stage`."""

    opener: str
    out: str
    stage: str

    def open(self) -> Tasks:
        """Import the opener and open the tasks."""
        module, _, function = self.opener.partition(":")
        tasks: Tasks = getattr(importlib.import_module(module), function)(self.out, self.stage)
        return tasks


class ProgressSink(Protocol):
    """Where an engine tells how far the work is."""

    def start(self, stage: str, total_bytes: int, done_bytes: int) -> None:
        """A stage begins; `done_bytes` were finished by an earlier run."""
        ...

    def add(self, counters: Counters) -> None:
        """Some more is done."""
        ...

    def finish(self) -> None:
        """The stage ended."""
        ...


class Engine(Protocol):
    """Runs every missing task of a list."""

    def run(self, spec: TaskSpec, progress: ProgressSink) -> None:
        """Return when no task is missing.

        Raises:
            TaskFailedError: if tasks keep failing; every other task is done, and the message names them with their reasons.
            BuildInterruptedError: on Ctrl-C or SIGTERM, after the workers have ended.
        """
        ...

    def close(self) -> None:
        """Let go of workers and connections, which an engine may keep from one `run` to the next."""
        ...
