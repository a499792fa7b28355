"""A thread on every rank that says what the rank is doing and notices when another no longer says anything.

PyTorch tells only that a collective failed or took too long, on the ranks that waited; the one to blame is silent. So every rank
writes a beat into the job's key-value store, with what its main thread does. From that one can tell:

* a rank that is *lost*: its process died, its beat stands still;
* a rank that is *stuck*: its beat goes on, but it neither works nor reports a failure while the others do.

A rank whose collective fails reports so with `explain` and gets the verdict for its error message. A rank that cannot be reached,
because its main thread hangs inside a collective, is ended by its own thread a moment after the verdict: a job never outlives one
of its ranks by more than twice the timeout.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

logger = logging.getLogger(__name__)

PHASES = ("start", "data", "step", "log", "validate", "save", "stop")
"""What a main thread can be doing, in the order of a step."""


UNTIMED = ("start", "save")
"""Phases that may take any time while all ranks are in them: they read or write a checkpoint. The collectives in between are
gloo's, which fail by themselves when one rank is missing."""


class KeyValueStore(Protocol):
    """What the monitor needs of `torch.distributed`'s store."""

    def set(self, key: str, value: str, /) -> None:
        """Write."""
        ...

    def get(self, key: str, /) -> bytes:
        """Read; waits for a key that is not there."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys are there."""
        ...


@dataclass(frozen=True, slots=True)
class Beat:
    """What one rank last said."""

    count: int
    step: int
    phase: str
    age: float
    """Seconds since its main thread began this phase."""

    def pack(self) -> str:
        """As a store value."""
        return f"{self.count} {self.step} {self.phase} {self.age:.3f}"

    @staticmethod
    def unpack(value: bytes) -> Beat:
        """From a store value."""
        count, step, phase, age = value.decode().split()
        return Beat(int(count), int(step), phase, float(age))

    @property
    def place(self) -> tuple[int, int]:
        """How far the rank is, comparable."""
        return self.step, PHASES.index(self.phase)


def _end_process(verdict: str) -> None:
    logger.error("Error: %s", verdict)
    logging.shutdown()
    os._exit(1)  # The main thread hangs inside a collective: no exception can reach it.


class Monitor:
    """Start it on every rank after the process group stands; `mark` before each phase; `close` at the end."""

    def __init__(
        self,
        store: KeyValueStore | None,
        *,
        rank: int,
        world_size: int,
        timeout_seconds: float,
        end_process: Callable[[str], None] = _end_process,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._timeout = timeout_seconds
        self._interval = min(5.0, max(0.1, timeout_seconds / 20))
        self._end_process = end_process
        self._mark: tuple[int, str, float] = (0, "start", time.monotonic())
        self._count = 0
        self._seen: dict[int, tuple[int, float]] = {}
        self._failed_since: float | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        if store is not None:
            self._publish()
            self._thread = threading.Thread(target=self._watch, name="tokpipe-monitor", daemon=True)

    def start(self) -> None:
        """Begin to watch; every rank must have been constructed by then (a barrier in between)."""
        if self._thread is not None:
            self._thread.start()

    def mark(self, step: int, phase: str) -> None:
        """Say what the main thread does from now on. Costs nothing: the thread publishes it."""
        self._mark = (step, phase, time.monotonic())

    def close(self) -> None:
        """Stop watching; call it when the run is over on this rank, before the process group goes."""
        self._closing.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
            with contextlib.suppress(RuntimeError):  # The store's host may have ended first.
                self._publish()

    def explain(self, error: BaseException) -> str:
        """Report a failed collective and wait for the verdict: which rank is to blame, in words. At most one timeout."""
        step, phase, _ = self._mark
        own = f"rank {self._rank} failed at step {step} ({phase}): {_first_line(error)}"
        if self._store is None:
            return own
        deadline = time.monotonic() + self._timeout
        try:
            self._store.set(f"monitor/failed/{self._rank}", own)
            while time.monotonic() < deadline:
                if self._store.check(["monitor/verdict"]):
                    verdict = self._store.get("monitor/verdict").decode()
                    time.sleep(3 * self._interval if self._rank == 0 else 0)  # Rank 0 may host the store: let others read it.
                    return f"{verdict}. Seen from here: {own}"
                time.sleep(self._interval)
        except RuntimeError:
            return f"the store is gone, so its host ended, rank 0 unless torchrun keeps it. Seen from here: {own}"
        return f"no rank is silent, so this one is to blame. {own}"

    def _watch(self) -> None:
        ending_at: float | None = None
        while not self._closing.wait(self._interval):
            try:
                self._publish()
                verdict = self._read_verdict()
            except RuntimeError as error:
                verdict = f"the store is gone, so its host ended, rank 0 unless torchrun keeps it ({_first_line(error)})"
            if verdict is None:
                continue
            # The main thread may be raising an error of its own, which says more; only if it cannot does the process end here.
            ending_at = ending_at or time.monotonic() + max(2.0, self._timeout / 2)
            if time.monotonic() > ending_at:
                self._end_process(f"rank {self._rank} ends because {verdict}")
                return

    def _publish(self) -> None:
        assert self._store is not None
        self._count += 1
        step, phase, since = self._mark
        self._store.set(f"monitor/beat/{self._rank}", Beat(self._count, step, phase, time.monotonic() - since).pack())

    def _read_verdict(self) -> str | None:
        """The verdict if there is one. Rank 0 judges all ranks; the others judge rank 0 alone, which keeps the load linear."""
        assert self._store is not None
        if self._store.check(["monitor/verdict"]):
            return self._store.get("monitor/verdict").decode()
        watched = range(1, self._world_size) if self._rank == 0 else [0]
        beats = {rank: Beat.unpack(self._store.get(f"monitor/beat/{rank}")) for rank in watched}
        verdict = self._lost(beats)
        if verdict is None and self._rank == 0:
            step, phase, since = self._mark
            beats[0] = Beat(self._count, step, phase, time.monotonic() - since)
            verdict = self._stuck(beats)
        if verdict is not None:
            self._store.set("monitor/verdict", verdict)
        return verdict

    def _lost(self, beats: dict[int, Beat]) -> str | None:
        now = time.monotonic()
        for rank, beat in beats.items():
            if rank not in self._seen or self._seen[rank][0] != beat.count:
                self._seen[rank] = (beat.count, now)
        patience = max(self._timeout / 2, 4 * self._interval)
        lost = [
            rank
            for rank, (_, when) in self._seen.items()
            if rank in beats and now - when > patience and beats[rank].phase != "stop"
        ]
        if not lost:
            return None
        return f"{_ranks(lost)} lost: no sign of life for {patience:.0f} s, last seen at {_where([beats[r] for r in lost])}"

    def _stuck(self, beats: dict[int, Beat]) -> str | None:
        assert self._store is not None
        failed = [rank for rank in beats if self._store.check([f"monitor/failed/{rank}"])]
        if failed:
            # Collectives fail one after another: judged at once, those whose report is under way would look stuck.
            self._failed_since = self._failed_since or time.monotonic()
            if time.monotonic() - self._failed_since < 2 * self._interval:
                return None
        silent = [rank for rank in beats if rank not in failed]
        waited = all(beats[rank].age > self._timeout for rank in silent)
        if failed and silent and waited:
            return f"{_ranks(silent)} stuck: alive, but still at {_where([beats[r] for r in silent])} when the others gave up"
        if failed and not silent:
            return "every rank's collective failed: " + self._store.get(f"monitor/failed/{failed[0]}").decode()
        untimed = all(beat.phase in UNTIMED for beat in beats.values())
        if not failed and not untimed and all(beat.age > 1.5 * self._timeout for beat in beats.values()):
            behind = min(beat.place for beat in beats.values())
            last = [rank for rank, beat in beats.items() if beat.place == behind]
            return f"{_ranks(last)} stuck at {_where([beats[r] for r in last])} for more than {1.5 * self._timeout:.0f} s"
        return None


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown} is" if len(ranks) == 1 else f"ranks {shown} are"


def _where(beats: list[Beat]) -> str:
    return " / ".join(sorted({f"step {beat.step} ({beat.phase})" for beat in beats}))


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
