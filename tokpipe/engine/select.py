"""Names to engines: the one place that knows which engines exist."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tokpipe.engine.base import Engine
from tokpipe.engine.local import LocalConfig, LocalEngine
from tokpipe.engine.ray import RayConfig, RayEngine
from tokpipe.engine.slurm import SlurmConfig, SlurmEngine

ENGINES = ("local", "slurm", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Which engine runs the tasks, and its settings. Never changes a byte of the output."""

    name: str = "local"
    """`local`: processes on this machine; `slurm`: array jobs; `ray`: tasks on a Ray cluster."""
    local: LocalConfig = field(default_factory=LocalConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    work_dir: Path = Path("tokpipe-jobs")
    """Job scripts, logs and progress of the Slurm engine; on a file system that the nodes share."""

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {self.name!r}")


def open_engine(config: EngineConfig) -> Engine:
    """Make the engine that `config` names. Ray itself is imported when the engine first runs."""
    if config.name == "slurm":
        return SlurmEngine(config.slurm, config.work_dir)
    if config.name == "ray":
        return RayEngine(config.ray)
    return LocalEngine(config.local)
