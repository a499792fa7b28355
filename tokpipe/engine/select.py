"""Names to engines: the one place that knows which engines exist."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokpipe.engine.base import Engine
from tokpipe.engine.local import LocalConfig, LocalEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Which engine runs the tasks, and its settings. Never changes a byte of the output."""

    name: str = "local"
    """`local`: processes on this machine."""
    local: LocalConfig = field(default_factory=LocalConfig)

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {self.name!r}")


ENGINES = ("local",)


def open_engine(config: EngineConfig) -> Engine:
    """Make the engine that `config` names."""
    return LocalEngine(config.local)
