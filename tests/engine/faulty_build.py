"""A build's own tasks, which misbehave as told: the opener of the fault tests. Nothing of it is in the product.

`$FAULTS/faults.json` maps `STAGE-INDEX` to what happens in the middle of that task's first attempt: `raise` (an exception),
`kill` (SIGKILL to itself), `wait` (a mark `waiting-STAGE-INDEX`, then sleep until the process is killed), `upload` (the same,
between the uploads of a shard's two files). Each fault strikes once: `struck-STAGE-INDEX` remembers.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from tokpipe.build import object_store, tasks
from tokpipe.engine.base import Counters, Report

FOLDER = "FAULTS"
WAIT_SECONDS = 120


class FaultyTasks:
    """Hands everything to the real tasks; strikes when a task reports that it has done a part of its work."""

    def __init__(self, out: str, stage: str):
        self.real, self.stage = tasks.open_tasks(out, stage), stage
        self.folder = Path(os.environ[FOLDER])
        self.faults = json.loads((self.folder / "faults.json").read_text())

    def __len__(self) -> int:
        return len(self.real)

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def run(self, index: int, report: Report) -> None:
        """Run the real task with a report that strikes."""
        task = f"{self.stage}-{index}"
        with (self.folder / "attempts").open("a") as file:
            file.write(f"{task}\n")
        fault = self.faults.get(task, "")
        if fault == "upload":
            self._strike_in_upload(task)

        def faulty(counters: Counters) -> None:
            report(counters)
            if fault in ("raise", "kill", "wait"):
                self._strike(task, fault)

        self.real.run(index, faulty)

    def _strike_in_upload(self, task: str) -> None:
        upload = object_store.upload

        def faulty(filesystem, source, key, shown):
            if source.suffix == ".idx":
                self._strike(task, "wait")
            upload(filesystem, source, key, shown)

        object_store.upload = faulty

    def _strike(self, task: str, fault: str) -> None:
        try:
            (self.folder / f"struck-{task}").touch(exist_ok=False)
        except FileExistsError:
            return
        if fault == "raise":
            raise ValueError(f"{task} fails at its first attempt")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / f"waiting-{task}").write_text(os.environ.get("SLURMD_NODENAME", str(os.getppid())))
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.1)


def open_tasks(out: str, stage: str) -> FaultyTasks:
    """The opener that takes the place of the build's own."""
    return FaultyTasks(out, stage)


if __name__ == "__main__":
    from tokpipe.cli.main import main

    tasks.OPENER = "faulty_build:open_tasks"
    main()
