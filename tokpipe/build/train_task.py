"""Training the tokenizer from the merged counts, and encoding the frequent units once for all workers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokpipe.build.count_task import table_name
from tokpipe.build.plan import TOKENIZER, Plan
from tokpipe.build.receipts import Receipt
from tokpipe.build.stage import StageTasks
from tokpipe.build.store import Attempt, Store
from tokpipe.engine.base import Counters, Report
from tokpipe.tokenizer import Tokenizer, train_tokenizer

TRAIN = "train"
WARM = "warm"


class _OneTask(StageTasks):
    """A stage that is one task on the merged table."""

    def __init__(self, store: Store, plan: Plan, stage: str) -> None:
        self._table = store.local(table_name(store, plan))
        super().__init__(store, plan, stage, [self._table.stat().st_size])

    def _publish(self, attempt: Attempt, files: Iterable[Path]) -> tuple[str, ...]:
        """Publish what lies in the attempt's tokenizer folder; the descriptions (JSON) come after what they describe."""
        names = sorted((path.suffix == ".json", path.name) for path in files)
        return tuple(attempt.publish(f"{TOKENIZER}/{name}") for _, name in names)

    def _receipt(self, files: tuple[str, ...], report: Report) -> Receipt:
        report(Counters(text_bytes=self.size(0)))
        return Receipt(plan=self.plan.hash, stage=self.stage, task=0, files=files)


class TrainTasks(_OneTask):
    """Train: one task, in a worker, so that its memory goes when the worker does."""

    def __init__(self, store: Store, plan: Plan) -> None:
        super().__init__(store, plan, TRAIN)

    def work(self, index: int, attempt: Attempt, report: Report) -> Receipt:
        """Train, publish model and card."""
        folder = attempt.path(f"{TOKENIZER}/tokenizer.model").parent
        train_tokenizer(self._table, self.config.train, folder)
        return self._receipt(self._publish(attempt, folder.iterdir()), report)


class WarmTasks(_OneTask):
    """Encode the frequent units with the trained model, for every worker to map."""

    def __init__(self, store: Store, plan: Plan) -> None:
        super().__init__(store, plan, WARM)

    def work(self, index: int, attempt: Attempt, report: Report) -> Receipt:
        """Encode, publish the arrays beside the model."""
        tokenizer = Tokenizer.load(self.store.local(TOKENIZER))
        folder = attempt.path(f"{TOKENIZER}/units").parent
        tokenizer.build_warm_units(self._table, folder)
        return self._receipt(self._publish(attempt, folder.iterdir()), report)
