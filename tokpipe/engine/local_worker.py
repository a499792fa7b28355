"""The process that runs tasks for the local engine: gets (run, spec, index), sends back counters, then `done` or `failed`.

It is a plain child process started by path, not a `multiprocessing.Process`: scripts that call the library need no
`if __name__ == "__main__"`, and the environment (one thread per library) is set before numpy is imported.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tokpipe.engine.attempts import describe
from tokpipe.engine.base import Counters, Tasks

# Linux: the kernel ends this process when its parent dies, even while a C library holds the interpreter.
PR_SET_PDEATHSIG = 1
PARENT_POLL_SECONDS = 0.5


def resident_bytes() -> int:
    """Memory that this process holds; where only the peak can be had, the peak.

    Not `ru_maxrss` on Linux: it survives exec, so a small worker of a large parent would look large.
    """
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def die_with(parent: int) -> None:
    """Make sure that no worker outlives the process that started it, however that one ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch-parent").start()


def serve(connection: Connection[Any, Any]) -> None:
    """Run what the parent asks for until it hangs up. A task list is kept, with all its state, for one `run` of the engine."""
    opened = -1
    tasks: Tasks | None = None
    report: Callable[[Counters], None] = lambda counters: connection.send(("progress", counters))  # noqa: E731
    connection.send(("ready", ""))
    while True:
        try:
            run, spec, index = connection.recv()
        except EOFError:
            return
        try:
            if tasks is None or run != opened:
                tasks = None  # frees the last stage's tables before the next one's are made
                tasks, opened = spec.open(), run
            tasks.run(index, report)
        except Exception as error:
            logging.getLogger(__name__).debug("task %d of %s failed", index, spec.stage, exc_info=True)
            connection.send(("failed", describe(error)))
        else:
            connection.send(("done", resident_bytes()))


def main(descriptor: int, parent: int, level: int) -> None:
    """Entry of the child process: `descriptor` is its end of the socket pair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it ends its workers itself
    die_with(parent)
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    logging.getLogger("aiobotocore").setLevel(max(level, logging.WARNING))
    connection: Connection[Any, Any] = Connection(descriptor)
    try:
        serve(connection)
    except (BrokenPipeError, ConnectionResetError):
        sys.exit(1)  # the parent is gone, and nobody is left to tell
