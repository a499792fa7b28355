"""The main job: plan, count, train, tokenize, manifest; resumable at any instant. `docs/build.md` tells the whole of it."""

from tokpipe.build.clean import clean
from tokpipe.build.config import BuildConfig, PartitionConfig
from tokpipe.build.estimate import Estimate, estimate_build
from tokpipe.build.finish import finish_dataset
from tokpipe.build.plan import Plan, make_plan, read_plan
from tokpipe.build.report import BuildReport, SourceReport
from tokpipe.build.run import build, plan_build, tokenize
from tokpipe.build.store import LocalStore, Store, open_store
from tokpipe.build.tasks import open_tasks, stages, task_spec

__all__ = [
    "BuildConfig",
    "BuildReport",
    "Estimate",
    "LocalStore",
    "PartitionConfig",
    "Plan",
    "SourceReport",
    "Store",
    "build",
    "clean",
    "estimate_build",
    "finish_dataset",
    "make_plan",
    "open_store",
    "open_tasks",
    "plan_build",
    "read_plan",
    "stages",
    "task_spec",
    "tokenize",
]
