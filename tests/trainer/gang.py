"""Eight processes of one gloo process group, started once, that run one function after another.

Starting processes and importing torch costs more than most layouts do, so every test of the trainer shares one gang. Functions
to run live in importable modules beside this file; they run on every rank and their results come back in rank order.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SIZE = 8
PRELOAD = ["torch", "torch.distributed.fsdp", "torch.distributed.pipelining", "tokpipe.trainer.parallelize"]


class Gang:
    """A process group of `SIZE` processes; `run` calls a function on all of them."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self._folder = tempfile.TemporaryDirectory(prefix="gang-")
        self._connections: list[Connection] = []
        self._processes = []
        for rank in range(SIZE):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, str(Path(self._folder.name) / "store"), there), daemon=True)
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 120) -> list[Any]:
        """Call `function(*args)` on every rank; the results in rank order, or the first rank's error."""
        for connection in self._connections:
            connection.send((function, args))
        answers = []
        for rank, connection in enumerate(self._connections):
            if not connection.poll(timeout):
                raise TimeoutError(f"rank {rank} did not answer within {timeout} s")
            answers.append(connection.recv())
        errors = [f"rank {rank}:\n{text}" for rank, (text, _) in enumerate(answers) if text]
        if errors:
            raise RuntimeError("\n".join(errors))
        return [result for _, result in answers]

    def close(self) -> None:
        """End every process."""
        for connection in self._connections:
            connection.send(None)
        for process in self._processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()


def _serve(rank: int, store: str, connection: Connection) -> None:
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    # A failing rank must fail the test, not hang it for gloo's half hour.
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=SIZE, timeout=timedelta(seconds=60))
    while (call := connection.recv()) is not None:
        function, args = call
        try:
            connection.send(("", function(*args)))
        except BaseException:
            connection.send((traceback.format_exc(), None))
    dist.destroy_process_group()
