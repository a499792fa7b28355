"""Run an iterator ahead in a thread: batches are built while the model trains. Array copies let go of the GIL."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
_POLL_SECONDS = 0.1


class Prefetcher(Generic[Item]):
    """Iterates over `items` up to `depth` ahead. Close it, or let it end, to stop its thread; what was not taken is dropped."""

    def __init__(self, items: Iterator[Item], depth: int) -> None:
        self._queue: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(items,), name="tokpipe-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        while True:
            item, error = self._queue.get()
            if error is not None:
                # The end is sent as StopIteration, and a failure as itself, in the order in which they happened.
                if isinstance(error, StopIteration):
                    return
                raise error
            yield item  # type: ignore[misc]

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        self._thread.join()

    def _run(self, items: Iterator[Item]) -> None:
        try:
            for item in items:
                if not self._put((item, None)):
                    return
            self._put((None, StopIteration()))
        except BaseException as error:  # handed to the thread that iterates
            self._put((None, error))

    def _put(self, entry: tuple[Item | None, BaseException | None]) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(entry, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False
