"""How tasks run."""

from tokpipe.engine.base import Counters, Engine, ProgressSink, Tasks, TaskSpec
from tokpipe.engine.local import LocalConfig, LocalEngine
from tokpipe.engine.progress import NoProgress, open_progress
from tokpipe.engine.select import ENGINES, EngineConfig, open_engine

__all__ = [
    "ENGINES",
    "Counters",
    "Engine",
    "EngineConfig",
    "LocalConfig",
    "LocalEngine",
    "NoProgress",
    "ProgressSink",
    "TaskSpec",
    "Tasks",
    "open_engine",
    "open_progress",
]
