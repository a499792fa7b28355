"""A list of tasks that misbehave as told, for the engines' tests. Results are files, as an engine's tasks must have.

`out/behaviour.json` maps a task's index to what it does: `raise_once`, `raise` (until the file `out/mended` exists), `kill_once`
and `kill` (SIGKILL to itself), `slow`. Every attempt is a line in `out/attempts`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from tokpipe.engine.base import Counters, Report


class ToyTasks:
    """`num` tasks; task i is worth i + 1 bytes and 10 tokens."""

    def __init__(self, out: str, stage: str):
        self.out, self.stage = Path(out), stage
        fields = json.loads((self.out / "behaviour.json").read_text())
        self.num = fields["num"]
        self.behaviour = {int(i): what for i, what in fields["behaviour"].items()}

    def __len__(self) -> int:
        return self.num

    def missing(self) -> list[int]:
        done = {path.name for path in (self.out / "results").iterdir()}
        return [index for index in reversed(range(self.num)) if str(index) not in done]

    def size(self, index: int) -> int:
        return index + 1

    def name(self, index: int) -> str:
        return f"{self.stage}-{index:05d}"

    def run(self, index: int, report: Report) -> None:
        if (self.out / "results" / str(index)).exists():
            return
        with (self.out / "attempts").open("a") as file:
            file.write(f"{index}\n")
        what = self.behaviour.get(index, "")
        if what in ("raise_once", "kill_once") and self.attempts(index) == 1:
            if what == "kill_once":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError(f"task {index} fails at its first attempt")
        if what == "raise" and not (self.out / "mended").exists():
            raise ValueError(f"task {index} always fails")
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "slow":
            (self.out / f"started-{index}-{os.getpid()}").touch()
            time.sleep(4)
        report(Counters(documents=1, tokens=10, text_bytes=index + 1))
        side = self.out / f".{index}.{os.getpid()}"
        side.touch()
        side.rename(self.out / "results" / str(index))

    def attempts(self, index: int) -> int:
        return (self.out / "attempts").read_text().split().count(str(index))


def open_tasks(out: str, stage: str) -> ToyTasks:
    """The opener that a TaskSpec names."""
    return ToyTasks(out, stage)
