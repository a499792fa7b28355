"""Ray: each task is a Ray task; a bounded window of them is in flight. Needs the extra `[ray]`.

Only paths and numbers go through the object store. Ray's own retries are off: a lost worker or node shows up here as an error,
is booked like any other failure, and the task is submitted again.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tokpipe.engine.attempts import Attempts, describe
from tokpipe.engine.base import Counters, ProgressSink, Tasks, TaskSpec
from tokpipe.engine.interrupts import sigterm_as_interrupt
from tokpipe.errors import BuildInterruptedError, EngineError, MissingExtraError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """Where the cluster is and how much of it to use."""

    address: str = "auto"
    """`auto` (RAY_ADDRESS, a cluster that runs on this machine, else a local one is started), `local`, or `HOST:PORT`."""
    window: int = 0
    """Tasks in flight; 0 takes twice the cluster's CPUs, looked at again as nodes come and go."""
    max_attempts: int = 3
    """A task that failed so often is given up."""


class RayEngine:
    """Runs a task list on a Ray cluster."""

    def __init__(self, config: RayConfig):
        self.config = config
        self._connected_here = False

    def close(self) -> None:
        """Leave the cluster; a local one that `run` started ends with it."""
        if self._connected_here:
            import_ray().shutdown()
            self._connected_here = False

    def run(self, spec: TaskSpec, progress: ProgressSink) -> None:
        """Submit tasks until none is missing; see `Engine.run`."""
        ray = import_ray()
        if not ray.is_initialized():
            connect(ray, self.config.address)
            self._connected_here = True
        tasks = spec.open()
        attempts = Attempts(self.config.max_attempts)
        missing = tasks.missing()
        absent = set(missing)
        done = sum(tasks.size(index) for index in range(len(tasks)) if index not in absent)
        progress.start(spec.stage, sum(map(tasks.size, range(len(tasks)))), done)
        submit = partial(ray.remote(num_cpus=1, max_retries=0)(run_one).remote, secrets.token_hex(8), spec)
        try:
            with sigterm_as_interrupt():
                while runnable := attempts.runnable(missing):
                    self._run_all(ray, submit, tasks, runnable, attempts, progress)
                    missing = tasks.missing()
        except KeyboardInterrupt:
            raise BuildInterruptedError("Interrupted. Finished tasks are kept: run the same command again to go on.") from None
        finally:
            progress.finish()
        attempts.raise_if_given_up(tasks, missing)

    def _run_all(
        self, ray: Any, submit: Callable[[int], Any], tasks: Tasks, indices: list[int], attempts: Attempts, progress: ProgressSink
    ) -> None:
        """One pass over `indices` with a bounded number in flight; failures go back into the queue."""
        waiting = deque(indices)
        flying: dict[Any, int] = {}
        try:
            while waiting or flying:
                window = self.config.window or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
                while waiting and len(flying) < window:
                    index = waiting.popleft()
                    flying[submit(index)] = index
                ready, _ = ray.wait(list(flying), num_returns=1, timeout=5.0)
                for reference in ready:
                    index = flying.pop(reference)
                    failure = collect(ray, reference, progress)
                    if failure and attempts.failed(index, tasks.name(index), failure):
                        waiting.append(index)
        finally:
            for reference in flying:
                ray.cancel(reference, force=True)


def import_ray() -> Any:
    """Ray itself.

    Raises:
        MissingExtraError: if it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            f"--engine ray needs Ray, and it cannot be imported ({error}). Install it with: pip install 'tokpipe[ray]'"
        ) from error
    return ray


def connect(ray: Any, address: str) -> None:
    """Connect to a cluster, or start a local one.

    Raises:
        EngineError: if the named cluster cannot be reached.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address  # as Ray would, but for its minutes of waiting where nothing answers
    if ":" in address:
        check_answers(address)
    quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
    try:
        try:
            ray.init(address=address, **quiet)
        except ConnectionError:
            if address != "auto":
                raise
            logger.info("no Ray cluster runs here: starting one on this machine")
            ray.init(address="local", include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise EngineError(
            f"no Ray cluster answers at {address!r} ({error}). Start one with `ray start --head`, or use --ray-address local."
        ) from error


def check_answers(address: str) -> None:
    """Try the port before Ray does: `ray.init` waits for more than five minutes for a head node that is not there.

    Raises:
        EngineError: if nothing listens at `[ray://]HOST:PORT`.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise EngineError(
            f"no Ray cluster answers at {address!r} ({error}). Start one with `ray start --head`, or use --ray-address local."
        ) from error


def collect(ray: Any, reference: Any, progress: ProgressSink) -> str:
    """Take one finished task's counters; returns the reason if it failed, else an empty string."""
    try:
        counters, failure = ray.get(reference)
    except ray.exceptions.RayError as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    progress.add(counters)
    return str(failure)


# The task list that this worker process has opened, and for which run: a tokenizer's table stays warm from task to task.
_opened: dict[str, Tasks] = {}


def run_one(run_id: str, spec: TaskSpec, index: int) -> tuple[Counters, str]:
    """Runs inside a Ray worker. Returns the counters and, if the task raised, the reason."""
    total = Counters()

    def add(counters: Counters) -> None:
        nonlocal total
        total += counters

    try:
        if run_id not in _opened:
            _opened.clear()  # frees the last stage's tables before the next one's are made
            _opened[run_id] = spec.open()
        _opened[run_id].run(index, add)
    except Exception as error:
        return total, describe(error)
    return total, ""
