"""What runs inside a job of somebody else's scheduler: some tasks of a list, one after the other.

    python -m tokpipe.engine.worker JOB_FOLDER ELEMENT

`JOB_FOLDER` holds `job.json` (written by the engine: the task list's spec and the indices of this round) and receives, per
element, `progress-*.json` (counters so far, and how many of its tasks it has begun) and `failure-*.json` (the reason of each task
that raised). Results are published by the tasks themselves; nothing here marks a task as done.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from tokpipe.engine.attempts import describe
from tokpipe.engine.base import Counters, TaskSpec

logger = logging.getLogger(__name__)

EXIT_STOPPED = 75
PROGRESS_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One round of tasks for a scheduler: element `e` of `num_elements` runs `indices[e::num_elements]`."""

    spec: TaskSpec
    indices: tuple[int, ...]
    num_elements: int

    def element(self, number: int) -> tuple[int, ...]:
        """The tasks of one element. A stride, because `indices` come largest first: every element gets a like amount."""
        return self.indices[number :: self.num_elements]

    def write(self, folder: Path) -> None:
        """Write `job.json` atomically into a new folder."""
        folder.mkdir(parents=True)
        write_json(folder / "job.json", asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Job:
        """Read what `write` wrote."""
        fields = json.loads((folder / "job.json").read_text(encoding="utf-8"))
        return cls(spec=TaskSpec(**fields["spec"]), indices=tuple(fields["indices"]), num_elements=fields["num_elements"])


class StopRequestedError(BaseException):
    """SIGTERM or SIGUSR1 arrived: the time limit is near. Not an Exception, so that no task takes it for its own failure."""


def write_json(path: Path, value: object) -> None:
    """Write a small file that a reader on another machine sees whole or not at all."""
    side = path.with_name(f".{path.name}.{os.getpid()}")
    side.write_text(json.dumps(value), encoding="utf-8")
    side.replace(path)


class ProgressFile:
    """Counters of one element, written now and then so that whoever waits can show a bar."""

    def __init__(self, path: Path):
        self.path = path
        self.total = Counters()
        self.begun = 0
        self._written = 0.0

    def begin(self) -> None:
        """One more task begins: what an element that is lost never came to has not failed."""
        self.begun += 1
        self.write()

    def add(self, counters: Counters) -> None:
        """Add and, every few seconds, write."""
        self.total += counters
        if time.monotonic() - self._written >= PROGRESS_SECONDS:
            self.write()

    def write(self) -> None:
        """Write the counters now."""
        write_json(self.path, {"counters": asdict(self.total), "begun": self.begun})
        self._written = time.monotonic()


def stop_on_signals() -> None:
    """Turn SIGTERM and SIGUSR1 into `StopRequestedError` in the main thread: open files are left as an abort leaves them."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise StopRequestedError(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, stop)


def run_element(folder: Path, number: int) -> int:
    """Run one element's tasks; a task that raises is written down and the next one runs. Returns the exit status."""
    job = Job.read(folder)
    tasks = job.spec.open()
    progress = ProgressFile(folder / f"progress-{number}.json")
    failures = 0
    try:
        for index in job.element(number):
            progress.begin()
            try:
                tasks.run(index, progress.add)
            except Exception as error:
                failures += 1
                logger.exception("%s failed", tasks.name(index))
                write_json(folder / f"failure-{index}.json", {"reason": describe(error)})
            progress.write()
    except StopRequestedError as stop:
        progress.write()
        logger.warning("stopped by %s; finished tasks stay finished, the rest is submitted again", stop)
        return EXIT_STOPPED
    return 1 if failures else 0


def main(arguments: list[str]) -> int:
    """Entry of `python -m tokpipe.engine.worker`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    stop_on_signals()
    return run_element(Path(arguments[0]), int(arguments[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
