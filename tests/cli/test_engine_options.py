from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tokpipe.cli.engine_options import ENGINE_OPTIONS, engine_of, place_of, work_dir
from tokpipe.cli.option_groups import with_options
from tokpipe.engine.local import LocalEngine
from tokpipe.engine.ray import RayEngine
from tokpipe.engine.slurm import SlurmEngine


def options_of(*arguments: str) -> dict[str, object]:
    """What the options come out as."""
    found: dict[str, object] = {}

    @click.command()
    @with_options(ENGINE_OPTIONS)
    def command(**options: object) -> None:
        found.update(options)

    done = CliRunner().invoke(command, list(arguments))
    assert done.exit_code == 0, done.output
    return found


def test_local_is_the_default():
    engine = engine_of(options_of("--workers", "3", "--max-attempts", "5"), "data")
    assert isinstance(engine, LocalEngine)
    assert (engine.config.workers, engine.config.max_attempts) == (3, 5)


def test_every_slurm_option_arrives():
    given = (
        "--engine slurm --slurm-partition cpu --slurm-account nlp --slurm-time 1:00:00 --slurm-memory 3G --slurm-max-parallel 9"
    )
    engine = engine_of(options_of(*given.split(), "--slurm-extra", "--qos=low", "--slurm-extra", "--nice=5"), "data")
    assert isinstance(engine, SlurmEngine)
    config = engine.config
    assert (config.partition, config.account, config.time_limit, config.memory) == ("cpu", "nlp", "1:00:00", "3G")
    assert (config.extra, config.max_parallel, config.max_attempts) == (("--qos=low", "--nice=5"), 9, 3)
    assert engine.work_dir == Path("data/build/slurm")


def test_ray_gets_its_address_and_is_not_imported():
    engine = engine_of(options_of("--engine", "ray", "--ray-address", "head:6379", "--max-attempts", "2"))
    assert isinstance(engine, RayEngine)
    assert (engine.config.address, engine.config.max_attempts) == ("head:6379", 2)


def test_a_refused_value_is_a_usage_error():
    with pytest.raises(click.UsageError, match="starts with --"):
        engine_of(options_of("--engine", "slurm", "--slurm-extra", "qos"))


@pytest.mark.parametrize(
    ("given", "out", "expected"),
    [
        ("", "data", "data/build/slurm"),
        ("", "s3://bucket/data", "tokpipe-jobs"),
        ("", "", "tokpipe-jobs"),
        ("/shared/jobs", "data", "/shared/jobs"),
    ],
)
def test_work_folder(given, out, expected):
    assert work_dir(given, out) == Path(expected)


def test_place_under_srun(monkeypatch):
    for name, value in {"PROCID": "5", "NTASKS": "8", "JOB_ID": "77", "STEP_ID": "0", "RESTART_COUNT": "2"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    place = place_of(options_of("--max-attempts", "4"))
    assert (place.rank, place.num_workers, place.token, place.max_attempts) == (5, 8, "77.0.2", 4)


def test_place_without_srun(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    with pytest.raises(click.UsageError, match=r"SLURM_STEP_ID is not set(.|\n)*srun -N 2"):
        place_of(options_of())
