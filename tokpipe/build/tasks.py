"""The stages of a build by name: what an engine's worker opens, and the order in which they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokpipe.build.count_task import COUNT, CountTasks, MergeTasks, count_stages
from tokpipe.build.plan import Plan, read_plan
from tokpipe.build.stage import StageTasks
from tokpipe.build.store import Store, open_store
from tokpipe.build.tokenize_task import TOKENIZE, TokenizeTasks
from tokpipe.build.train_task import TRAIN, WARM, TrainTasks, WarmTasks
from tokpipe.engine.base import TaskSpec

OPENER = "tokpipe.build.tasks:open_tasks"


def stages(plan: Plan) -> list[str]:
    """Names of a plan's stages, in order."""
    training = [*count_stages(plan), TRAIN, WARM] if plan.counted else []
    return [*training, TOKENIZE]


def task_spec(out: str, stage: str) -> TaskSpec:
    """What an engine needs to run a stage, in processes that may have another working folder."""
    return TaskSpec(OPENER, out if "://" in out else str(Path(out).absolute()), stage)


def open_tasks(out: str, stage: str) -> StageTasks:
    """Open one stage of the build at `out`. Cheap; needs the stages before it to be finished.

    Raises:
        BuildError: if there is no plan at `out`.
        ValueError: if no stage is called so.
    """
    store = open_store(out)
    plan = read_plan(store)
    simple: dict[str, Callable[[Store, Plan], StageTasks]] = {
        COUNT: CountTasks,
        TRAIN: TrainTasks,
        WARM: WarmTasks,
        TOKENIZE: TokenizeTasks,
    }
    if stage in simple:
        return simple[stage](store, plan)
    if stage in count_stages(plan):
        return MergeTasks(store, plan, int(stage.rpartition("-")[2]))
    raise ValueError(f"no stage {stage!r}; this plan has {', '.join(stages(plan))}")
