"""Slurm: an array job over the tasks that are missing, submitted again until none is.

Slurm's own state is never trusted: whether a task is done is read from its result. What Slurm loses (a node, a process killed
for memory, a job ended at its time limit) is simply still missing when the array has ended, and goes into the next one.
"""

from __future__ import annotations

import logging
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tokpipe.engine.attempts import Attempts
from tokpipe.engine.base import ProgressSink, Tasks, TaskSpec
from tokpipe.engine.interrupts import sigterm_as_interrupt
from tokpipe.engine.local import ONE_THREAD
from tokpipe.engine.progress_files import FileProgress, num_begun, read_failures
from tokpipe.engine.worker import Job
from tokpipe.errors import BuildInterruptedError, EngineError

logger = logging.getLogger(__name__)

# Slurm's own default; a task above it would be refused, so several tasks share an element instead.
DEFAULT_MAX_ARRAY_SIZE = 1001
# A controller that restarts is silent for a while; only after this long is it called lost.
CONTROLLER_PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmConfig:
    """How the array is submitted."""

    partition: str = ""
    """`#SBATCH --partition`; empty takes the cluster's default."""
    account: str = ""
    """`#SBATCH --account`; empty takes the user's default."""
    time_limit: str = "04:00:00"
    """Per array element. Two minutes before it ends the worker is told to stop cleanly."""
    memory: str = "2G"
    """Per array element: a process stays under 1 GB, and the one task that trains has two."""
    extra: tuple[str, ...] = ()
    """More `#SBATCH` lines, without the prefix: `--qos=low`."""
    max_parallel: int = 0
    """At most so many elements at once (`--array=...%N`); 0 leaves it to the cluster."""
    max_array_size: int = 0
    """Most elements of one array; 0 asks the controller (MaxArraySize)."""
    max_attempts: int = 3
    """A task that is missing after so many arrays is given up."""
    poll_seconds: float = 5.0
    """How often the queue and the progress are looked at; more often at first."""

    def __post_init__(self) -> None:
        for line in self.extra:
            if not line.startswith("--") or "\n" in line:
                raise ValueError(f"an extra #SBATCH line must be one line that starts with --, got {line!r}")


class SlurmEngine:
    """Runs a task list through `sbatch`. `work_dir` must be on a file system that the compute nodes share."""

    def __init__(self, config: SlurmConfig, work_dir: Path):
        self.config = config
        self.work_dir = work_dir

    def close(self) -> None:
        """Nothing is kept between stages."""

    def run(self, spec: TaskSpec, progress: ProgressSink) -> None:
        """Submit arrays until no task is missing; see `Engine.run`."""
        for program in ("sbatch", "squeue", "scancel", "scontrol"):
            if shutil.which(program) is None:
                raise EngineError(
                    f"--engine slurm needs `{program}`, and it is not on PATH. Run on a login node, or use --engine local."
                )
        tasks = spec.open()
        attempts = Attempts(self.config.max_attempts)
        missing = tasks.missing()
        progress.start(spec.stage, sum(map(tasks.size, range(len(tasks)))), done_bytes(tasks, missing))
        try:
            with sigterm_as_interrupt():
                while runnable := attempts.runnable(missing):
                    folder = self._run_array(spec, tuple(runnable), progress)
                    missing = tasks.missing()
                    self._book_failures(tasks, attempts, sorted(set(runnable) & set(missing)), folder)
        finally:
            progress.finish()
        attempts.raise_if_given_up(tasks, missing)

    def _run_array(self, spec: TaskSpec, indices: tuple[int, ...], progress: ProgressSink) -> Path:
        """Submit one array and wait until it has left the queue. Returns its folder of logs and progress."""
        num_elements = min(len(indices), self.config.max_array_size or max_array_size())
        folder = new_folder(self.work_dir, spec.stage)
        Job(spec=spec, indices=indices, num_elements=num_elements).write(folder)
        script = folder / "array.sbatch"
        script.write_text(sbatch_script(self.config, spec.stage, folder, num_elements), encoding="utf-8")
        job_id = submit(script)
        logger.info("submitted Slurm job %s: %d tasks in %d elements; logs in %s", job_id, len(indices), num_elements, folder)
        counted = FileProgress(folder)
        try:
            self._wait(job_id, counted, progress)
        except BaseException as error:
            # Whatever ends the build ends its job, too.
            subprocess.run(["scancel", job_id], check=False, capture_output=True)
            if not isinstance(error, KeyboardInterrupt):
                raise
            raise BuildInterruptedError(
                f"Interrupted; Slurm job {job_id} is cancelled. Finished tasks are kept: run the same command again to go on."
            ) from None
        progress.add(counted.new())
        return folder

    def _wait(self, job_id: str, counted: FileProgress, progress: ProgressSink) -> None:
        """Until the job has left the queue.

        Raises:
            EngineError: if the controller does not answer for ten minutes.
        """
        began = last_answer = time.monotonic()
        while True:
            # A stage of seconds is not to wait for the pace of one of hours.
            time.sleep(min(self.config.poll_seconds, 0.5 + (time.monotonic() - began) / 20))
            progress.add(counted.new())
            active = is_queued(job_id)
            if active is False:
                return
            if active:
                last_answer = time.monotonic()
            if time.monotonic() - last_answer > CONTROLLER_PATIENCE_SECONDS:
                raise EngineError(
                    f"the Slurm controller has not answered for {CONTROLLER_PATIENCE_SECONDS:.0f} s while job {job_id} ran. "
                    f"Finished tasks are kept; run the same command again when it is back (`scancel {job_id}` first)."
                )

    def _book_failures(self, tasks: Tasks, attempts: Attempts, indices: list[int], folder: Path) -> None:
        """Each task of the array that was begun and is still missing failed once: by its own word, or in silence (see its log).

        What an element never came to before it was lost has not failed. But where not one task was done, all have: otherwise a
        node on which nothing can start would be tried for ever.
        """
        reasons = read_failures(folder)
        job = Job.read(folder)
        nothing_done = len(indices) == len(job.indices)
        for index in indices:
            place, element = divmod(job.indices.index(index), job.num_elements)
            reason = reasons.get(index)
            if reason is None:
                if place >= num_begun(folder, element) and not nothing_done:
                    continue
                reason = "ended without a result (killed, or out of memory or time); " + log_tail(
                    folder / f"element-{element}.log"
                )
            attempts.failed(index, tasks.name(index), reason)


def sbatch_script(config: SlurmConfig, stage: str, folder: Path, num_elements: int) -> str:
    """The whole job script. `exec`, so that the worker itself gets the signal that `B:` sends to the batch shell."""
    limit = f"%{config.max_parallel}" if config.max_parallel else ""
    lines = [
        f"--job-name=tokpipe-{stage}",
        f"--array=0-{num_elements - 1}{limit}",
        f"--output={sbatch_path(folder)}/element-%a.log",
        "--open-mode=append",
        "--ntasks=1",
        "--cpus-per-task=1",
        f"--mem={config.memory}",
        f"--time={config.time_limit}",
        "--signal=B:USR1@120",
        "--requeue",
    ]
    lines += [f"--partition={config.partition}"] if config.partition else []
    lines += [f"--account={config.account}"] if config.account else []
    header = "\n".join(f"#SBATCH {line}" for line in [*lines, *config.extra])
    threads = "".join(f"export {name}={value}\n" for name, value in ONE_THREAD.items())
    command = f'exec {shlex.quote(sys.executable)} -m tokpipe.engine.worker {shlex.quote(str(folder))} "$SLURM_ARRAY_TASK_ID"'
    return f"#!/bin/sh\n{header}\n{threads}{command}\n"


def sbatch_path(folder: Path) -> str:
    """A folder as `#SBATCH` lines take it: in quotes, for the line is cut at spaces, and `%` doubled, for it begins a pattern."""
    escaped = str(folder).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def new_folder(work_dir: Path, stage: str) -> Path:
    """The first unused `STAGE-NNNN`; rounds of earlier runs keep their logs."""
    taken = [
        int(found[1]) for path in work_dir.glob(f"{stage}-*") if (found := re.fullmatch(rf"{re.escape(stage)}-(\d+)", path.name))
    ]
    return work_dir.resolve() / f"{stage}-{max(taken, default=-1) + 1:04d}"


def submit(script: Path) -> str:
    """`sbatch`; returns the job id.

    Raises:
        EngineError: with Slurm's own words, if it refuses.
    """
    done = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(
            f"sbatch refused {script}: {done.stderr.strip() or done.stdout.strip()}. The script is kept there: try it by hand."
        )
    return done.stdout.strip().split(";")[0]


def is_queued(job_id: str) -> bool | None:
    """Whether any element waits or runs; None if the controller does not answer. An unknown job has ended long ago."""
    done = subprocess.run(["squeue", "-h", "-j", job_id, "-o", "%i"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return bool(done.stdout.strip())
    if "Invalid job id" in done.stderr:
        return False
    logger.debug("squeue: %s", done.stderr.strip())
    return None


def max_array_size() -> int:
    """Most elements of one array on this cluster: MaxArraySize is the first index that is refused."""
    done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=False)
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", done.stdout, re.MULTILINE)
    return int(found[1]) if found else DEFAULT_MAX_ARRAY_SIZE


def log_tail(path: Path, num_lines: int = 5) -> str:
    """The last lines of a log, for an error message."""
    if not path.exists():
        return f"it never started ({path} was not written)"
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-num_lines:]
    return f"the end of {path}: " + (" | ".join(lines) if lines else "(empty)")


def done_bytes(tasks: Tasks, missing: list[int]) -> int:
    """Bytes of the tasks that earlier runs finished."""
    absent = set(missing)
    return sum(tasks.size(index) for index in range(len(tasks)) if index not in absent)
