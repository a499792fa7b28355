"""The options that say what runs the tasks, and how they become an engine, or a place among processes that Slurm started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokpipe.engine.base import Engine
from tokpipe.engine.local import LocalConfig
from tokpipe.engine.ray import RayConfig
from tokpipe.engine.select import ENGINES, EngineConfig, open_engine
from tokpipe.engine.slurm import SlurmConfig

if TYPE_CHECKING:
    from tokpipe.build.task_worker import WorkerPlace

ENGINE_OPTIONS = [
    click.option("--engine", type=click.Choice(ENGINES), default="local", show_default=True, help="What runs the tasks."),
    click.option("--workers", type=int, default=0, show_default="one per core", help="Processes of the local engine."),
    click.option("--max-attempts", type=int, default=3, show_default=True, help="Tries of a task before it is given up."),
    click.option("--work-dir", default="", metavar="DIR", help="Slurm's job scripts and logs.  [default: OUT/build/slurm]"),
    click.option("--slurm-partition", default="", help="#SBATCH --partition."),
    click.option("--slurm-account", default="", help="#SBATCH --account."),
    click.option("--slurm-time", default="04:00:00", show_default=True, help="#SBATCH --time, of one element of the array."),
    click.option("--slurm-memory", default="2G", show_default=True, help="#SBATCH --mem, of one element of the array."),
    click.option("--slurm-extra", multiple=True, metavar="'--X=Y'", help="One more #SBATCH line, e.g. '--qos=low'; repeatable."),
    click.option("--slurm-max-parallel", type=int, default=0, help="Elements of the array at once.  [default: no limit]"),
    click.option("--ray-address", default="auto", show_default=True, help="auto, local, or HOST:PORT of a Ray head node."),
]
TASK_WORKER_OPTION = [
    click.option("--task-worker", is_flag=True, help="This is one of many processes of `srun`, which share one build."),
]
SRUN_VARIABLES = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID")


def engine_of(options: dict[str, Any], out: str = "") -> Engine:
    """Options to an engine; `out` says where a work folder would lie.

    Raises:
        click.UsageError: for a value that the engine refuses.
    """
    attempts = options["max_attempts"]
    try:
        return open_engine(
            EngineConfig(
                name=options["engine"],
                local=LocalConfig(workers=options["workers"], max_attempts=attempts),
                slurm=SlurmConfig(
                    partition=options["slurm_partition"],
                    account=options["slurm_account"],
                    time_limit=options["slurm_time"],
                    memory=options["slurm_memory"],
                    extra=options["slurm_extra"],
                    max_parallel=options["slurm_max_parallel"],
                    max_attempts=attempts,
                ),
                ray=RayConfig(address=options["ray_address"], max_attempts=attempts),
                work_dir=work_dir(options["work_dir"], out),
            )
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def work_dir(given: str, out: str = "") -> Path:
    """Where an engine keeps its jobs: as given, else inside a local output, else in the working folder."""
    if given:
        return Path(given)
    return Path(out) / "build" / "slurm" if out and "://" not in out else Path("tokpipe-jobs")


def place_of(options: dict[str, Any]) -> WorkerPlace:
    """Which of the processes of `srun` this is.

    Raises:
        click.UsageError: if it is none, or an engine is asked for as well.
    """
    # Imported here: `tokpipe verify` takes these options too, and must not wait for all that a build needs.
    from tokpipe.build.task_worker import WorkerPlace

    if options["engine"] != "local":
        raise click.UsageError("--task-worker is for processes that srun started; leave --engine out.")
    absent = [name for name in SRUN_VARIABLES if not os.environ.get(name)]
    if absent:
        raise click.UsageError(
            f"--task-worker must run under srun, and {', '.join(absent)} is not set. "
            "Start it as `srun -N 2 -n 8 tokpipe build --task-worker ...`, or use --engine slurm from a login node."
        )
    rank, num_workers, job, step = (os.environ[name] for name in SRUN_VARIABLES)
    # A job that was requeued keeps its number; its processes must not follow what the earlier run announced.
    token = f"{job}.{step}.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    return WorkerPlace(rank=int(rank), num_workers=int(num_workers), token=token, max_attempts=options["max_attempts"])
