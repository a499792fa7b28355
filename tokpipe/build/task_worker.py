"""One build by processes that somebody else started: `srun -N 4 -n 64 tokpipe build --task-worker ...`.

Every process owns a fixed stride of each stage's tasks. Process 0 is the build itself: it plans, announces each stage in
`build/through/TOKEN/announced.json`, does its own share, waits for the others', and writes the manifest. The others follow the
announcements. The token names the job: nobody follows, or writes over, what another job has announced.

A process that dies leaves its share missing. When every process has said that it is through with a stage, or nothing new has
come for a while, process 0 does what is missing itself.
"""

from __future__ import annotations

import errno
import json
import logging
import time
from dataclasses import dataclass, replace

from tokpipe.build.config import BuildConfig
from tokpipe.build.report import BuildReport
from tokpipe.build.run import build
from tokpipe.build.store import Store, open_store
from tokpipe.build.tasks import task_spec
from tokpipe.engine.attempts import Attempts, describe
from tokpipe.engine.base import Counters, ProgressSink, Tasks, TaskSpec
from tokpipe.engine.interrupts import sigterm_as_interrupt
from tokpipe.errors import BuildError

log = logging.getLogger(__name__)

THROUGH = "build/through"
DONE, FAILED = "", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlace:
    """Which of the processes this is."""

    rank: int
    num_workers: int
    token: str
    """Names the job, the same in all of its processes and in no other job."""
    poll_seconds: float = 2.0
    """How often results and announcements are looked at."""
    patience_seconds: float = 900.0
    """How long process 0 waits without any new result before it does the missing tasks itself."""
    max_attempts: int = 3
    """A task that process 0 has seen fail so often is given up."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_workers:
            raise ValueError(f"rank must be in [0, {self.num_workers}), got {self.rank}")

    def share(self, tasks: Tasks) -> list[int]:
        """This process's tasks, largest first; the same at every call, whatever is done already."""
        by_size = sorted(range(len(tasks)), key=lambda index: (-tasks.size(index), index))
        return by_size[self.rank :: self.num_workers]


def build_together(config: BuildConfig, place: WorkerPlace, progress: ProgressSink) -> BuildReport | None:
    """Do this process's part of a build. Process 0 gets the report, the others None.

    Raises:
        TokpipeError: in process 0, whatever `build` raises; in the others, if process 0 has failed.
    """
    store = open_store(config.out)
    # Slurm sends SIGTERM to all of them at the time limit; were it to end process 0 alone, the others must hear of it.
    with sigterm_as_interrupt():
        if place.rank:
            _follow(store, place)
            return None
        try:
            report = build(config, engine=SharedEngine(store, place), progress=progress)
        except BaseException:
            _announce(store, place, FAILED)
            raise
        _announce(store, place, DONE)
        return report


def announced_name(place: WorkerPlace) -> str:
    """Where process 0 of this job says which stage is on."""
    return f"{THROUGH}/{place.token}/announced.json"


def _announce(store: Store, place: WorkerPlace, stage: str) -> None:
    store.write(announced_name(place), json.dumps({"stage": stage}).encode())


def _announced(store: Store, place: WorkerPlace) -> str | None:
    """What process 0 has announced; None if nothing yet, or if the file was replaced while it was read (NFS: stale)."""
    try:
        return str(json.loads(store.read(announced_name(place)))["stage"])
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return None


def _follow(store: Store, place: WorkerPlace) -> None:
    """Do the share of every announced stage until the build is done.

    Raises:
        BuildError: if process 0 says that it failed.
    """
    last = None
    while True:
        stage = _announced(store, place)
        if stage == DONE:
            return
        if stage == FAILED:
            raise BuildError(f"{store.out}: process 0 of this job has failed; see its log. Finished tasks are kept.")
        if stage is None or stage == last:
            time.sleep(place.poll_seconds)
            continue
        last = stage
        _do_share(store, place, stage)


def _do_share(store: Store, place: WorkerPlace, stage: str) -> None:
    tasks = task_spec(store.out, stage).open()
    for index in place.share(tasks):
        try:
            tasks.run(index, lambda counters: None)
        except Exception:
            log.exception("process %d: %s failed; process 0 will try it", place.rank, tasks.name(index))
    store.write(_through(place, stage), b"")


def _through(place: WorkerPlace, stage: str) -> str:
    return f"{THROUGH}/{place.token}/{stage}-{place.rank:05d}"


class SharedEngine:
    """Process 0's engine: announce, do the own share, wait, and pick up what others have left."""

    def __init__(self, store: Store, place: WorkerPlace) -> None:
        self._store = store
        self._place = place

    def close(self) -> None:
        """Nothing is kept."""

    def run(self, spec: TaskSpec, progress: ProgressSink) -> None:
        """Return when no task is missing; see `Engine.run`."""
        tasks = spec.open()
        missing = tasks.missing()
        total = sum(map(tasks.size, range(len(tasks))))
        progress.start(spec.stage, total, total - sum(map(tasks.size, missing)))
        attempts = Attempts(self._place.max_attempts)
        _announce(self._store, self._place, spec.stage)
        try:
            for index in self._place.share(tasks):
                self._try(tasks, index, attempts, progress)
            self._wait(spec.stage, tasks, progress)
            while runnable := attempts.runnable(missing := tasks.missing()):
                for index in runnable:
                    self._try(tasks, index, attempts, progress)
        finally:
            progress.finish()
        attempts.raise_if_given_up(tasks, missing)

    def _try(self, tasks: Tasks, index: int, attempts: Attempts, progress: ProgressSink) -> None:
        try:
            tasks.run(index, progress.add)
        except Exception as error:
            attempts.failed(index, tasks.name(index), describe(error))

    def _wait(self, stage: str, tasks: Tasks, progress: ProgressSink) -> None:
        """Until all others are through with the stage, or nothing is missing, or nothing new has come for too long."""
        others = [_through(replace(self._place, rank=rank), stage) for rank in range(1, self._place.num_workers)]
        seen = set(tasks.missing())
        changed = time.monotonic()
        while seen and time.monotonic() - changed < self._place.patience_seconds:
            if all(self._store.exists(note) for note in others):
                return
            time.sleep(self._place.poll_seconds)
            now = set(tasks.missing())
            if now != seen:
                progress.add(Counters(text_bytes=sum(tasks.size(index) for index in seen - now)))
                seen, changed = now, time.monotonic()
