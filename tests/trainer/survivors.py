"""Three processes that train, one of which dies or hangs: what the others say, and that all of them end."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokpipe.errors import TrainingStoppedError
from tokpipe.trainer.config import TrainConfig
from tokpipe.trainer.mesh import ParallelConfig

SIZE = 3
VICTIM = 1
AT_STEP = 2
KILL, HANG = "kill", "hang"


def train_with_a_victim(config: TrainConfig, how: str) -> tuple[list[int | None], list[str]]:
    """Run it; (exit codes, what each rank left to read)."""
    folder = Path(config.run.out)
    folder.mkdir(parents=True, exist_ok=True)
    data = replace(config.data, global_batch_size=12)
    config = replace(config, parallel=ParallelConfig(dp=SIZE), data=data)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=_rank, args=(rank, port, config, how), daemon=True) for rank in range(SIZE)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + 90
    for process in processes:
        process.join(max(0.1, deadline - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.is_alive():
            process.kill()
    return codes, [path.read_text() for path in sorted(folder.glob("said-*"))]


def _rank(rank: int, port: int, config: TrainConfig, how: str) -> None:
    import torch

    from tokpipe.trainer.data import DatasetSource
    from tokpipe.trainer.train import run_training
    from tokpipe.trainer.world import Launch

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    said = Path(config.run.out) / f"said-{rank}"
    logging.basicConfig(filename=said, level=logging.ERROR)

    class Source(DatasetSource):
        steps = 0

        def next_step(self) -> Any:
            if rank == VICTIM and self.steps == AT_STEP:
                if how == KILL:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(120)
            self.steps += 1
            return super().next_step()

    source = Source(config.data, seed=0, mesh=None, micro_batch_size=4, device=torch.device("cpu"))
    try:
        run_training(config, launch=Launch(rank=rank, world_size=SIZE, distributed=True), source=source)
    except TrainingStoppedError as error:
        logging.error("%s", error)
        logging.shutdown()
        sys.stdout.flush()
        os._exit(3)
