"""The default engine: worker processes on this machine, one per core, kept from stage to stage.

The largest tasks go first, so that the last worker to finish is not the one that got the largest task last. A worker that dies
(SIGKILL, out of memory) costs the task it was at, which is given to another one; a task that raises is not tried again, because
the same input would raise again. Either way the other tasks are finished before the error is raised.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from tokpipe.engine.attempts import Attempts
from tokpipe.engine.base import Counters, ProgressSink, Tasks, TaskSpec
from tokpipe.engine.interrupts import sigterm_as_interrupt
from tokpipe.errors import BuildInterruptedError, EngineError

# One task is one core: libraries that start a thread per core would only fight each other.
ONE_THREAD = dict.fromkeys(
    ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "ARROW_IO_THREADS"], "1"
)
TICK_SECONDS = 1.0
END_SECONDS = 10.0
MAX_FAILED_STARTS = 3
# A worker with its libraries and small tables takes 0.4 GB.
RETIRE_BYTES = 500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig:
    """How many processes, and how patient."""

    workers: int = 0
    """Worker processes; 0 is one per core that this process may use."""
    max_attempts: int = 3
    """A task whose worker has died this often is given up."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ValueError(f"workers must be 0 (one per core) or more, got {self.workers}")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, got {self.max_attempts}")

    @property
    def num_workers(self) -> int:
        """The number of processes meant."""
        if self.workers:
            return self.workers
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """One child process and what it is at."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        start = (
            f"import sys; sys.path[:] = {sys.path!r}; from tokpipe.engine.local_worker import main; "
            f"main({theirs.fileno()}, {os.getpid()}, {logging.getLogger().getEffectiveLevel()})"
        )
        with theirs:
            # A process group of its own: Ctrl-C on the terminal reaches the parent alone, which ends the workers in order.
            self.process = subprocess.Popen(
                [sys.executable, "-c", start],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **ONE_THREAD},
                process_group=0,
            )
        self.connection: Connection[Any, Any] = Connection(ours.detach())
        self.ready = False
        self.index = -1
        self.reported = Counters()
        self.resident_bytes = 0

    def give(self, run: int, spec: TaskSpec, index: int) -> None:
        """Hand over a task; a worker that has just died is noticed by the next `recv`."""
        self.index, self.reported = index, Counters()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send((run, spec, index))

    def epitaph(self) -> str:
        """How the dead process ended, in words."""
        status = self.process.wait()
        if status == -signal.SIGKILL:
            return "its process was killed (signal 9: by hand, or for want of memory)"
        return f"its process died ({f'signal {-status}' if status < 0 else f'exit status {status}'})"

    def hang_up(self) -> None:
        """Let an idle process return; kill one that is at a task. What it has published stays, the rest is found as dead."""
        self.connection.close()
        if self.index >= 0:
            self.process.kill()

    def wait(self) -> None:
        """See the process end; one that does not return is killed."""
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class LocalEngine:
    """Runs tasks in worker processes. Close it (or use it in `with`) to end the idle ones."""

    def __init__(self, config: LocalConfig | None = None) -> None:
        self.config = config or LocalConfig()
        self._workers: list[_Worker] = []
        self._runs = 0

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """End every worker, all side by side."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.hang_up()
        for worker in workers:
            worker.wait()

    def run(self, spec: TaskSpec, progress: ProgressSink) -> None:
        """Run every missing task.

        Raises:
            TaskFailedError: if tasks raised or their workers kept dying; the others are done.
            BuildInterruptedError: on Ctrl-C or SIGTERM; the workers have ended.
            EngineError: if workers cannot be started.
        """
        tasks = spec.open()
        missing = tasks.missing()
        total = sum(tasks.size(index) for index in range(len(tasks)))
        progress.start(spec.stage, total, total - sum(tasks.size(index) for index in missing))
        self._runs += 1
        stage = _Stage(spec, tasks, missing, self.config.max_attempts, progress)
        try:
            with sigterm_as_interrupt():
                self._loop(stage, min(self.config.num_workers, len(missing)))
        except KeyboardInterrupt:
            self.close()
            left = len(tasks.missing())
            raise BuildInterruptedError(
                f"Stopped during {spec.stage}: {len(tasks) - left} of {len(tasks)} tasks are done and stay done. "
                "The same command goes on from here."
            ) from None
        except BaseException:
            self.close()
            raise
        finally:
            progress.finish()
        self._retire()
        stage.raise_failures()

    def _retire(self) -> None:
        """End the workers that a stage has made large: allocators seldom give memory back, and the next stage needs some."""
        large = [worker for worker in self._workers if worker.resident_bytes > RETIRE_BYTES]
        self._workers = [worker for worker in self._workers if worker not in large]
        for worker in large:
            worker.hang_up()
        for worker in large:
            worker.wait()

    def _loop(self, stage: _Stage, num_workers: int) -> None:
        failed_starts = 0
        while stage.queue or any(worker.index >= 0 for worker in self._workers):
            while len(self._workers) < num_workers and stage.queue:
                self._workers.append(_Worker())
            for worker in self._workers:
                if worker.ready and worker.index < 0 and stage.queue:
                    worker.give(self._runs, stage.spec, stage.queue.popleft())
            heard = wait([worker.connection for worker in self._workers], TICK_SECONDS)
            stage.progress.add(Counters())
            for worker in [worker for worker in self._workers if worker.connection in heard]:
                try:
                    kind, value = worker.connection.recv()
                except (EOFError, ConnectionResetError):
                    self._workers.remove(worker)
                    failed_starts += not worker.ready
                    stage.died(worker)
                    worker.connection.close()
                else:
                    stage.hear(worker, kind, value)
            if failed_starts >= MAX_FAILED_STARTS:
                raise EngineError(f"{failed_starts} worker processes ended before they were ready; their messages are above.")


class _Stage:
    """The book of one `run`: what waits, what failed and why, what was reported."""

    def __init__(self, spec: TaskSpec, tasks: Tasks, missing: list[int], max_attempts: int, progress: ProgressSink) -> None:
        self.spec, self.tasks, self.progress = spec, tasks, progress
        self.queue = deque(missing)
        self.attempts = Attempts(max_attempts)

    def hear(self, worker: _Worker, kind: str, value: Any) -> None:
        """Book one message of a worker."""
        if kind == "ready":
            worker.ready = True
        elif kind == "progress":
            worker.reported = worker.reported + value
            self.progress.add(value)
        else:
            if kind == "done":
                worker.resident_bytes = value
            else:
                self.progress.add(-worker.reported)
                self.attempts.failed(worker.index, self.tasks.name(worker.index), str(value), final=True)
            worker.index = -1

    def died(self, worker: _Worker) -> None:
        """Book a death: the task goes to the front of the queue, or is given up."""
        epitaph, index = worker.epitaph(), worker.index
        if index < 0:
            return
        self.progress.add(-worker.reported)
        if self.attempts.failed(index, self.tasks.name(index), epitaph):
            self.queue.appendleft(index)

    def raise_failures(self) -> None:
        """Raise if a task has no result, with the reasons."""
        missing = self.tasks.missing()
        for index in self.attempts.runnable(missing):
            self.attempts.failed(index, self.tasks.name(index), "returned without a result", final=True)
        self.attempts.raise_if_given_up(self.tasks, missing)
