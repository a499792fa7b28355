"""What all stages' tasks have in common: a task is done when its receipt is there, and the largest missing one comes first."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tokpipe.build.plan import Plan
from tokpipe.build.receipts import Receipt, finished_tasks, receipt_name
from tokpipe.build.store import Attempt, Store
from tokpipe.engine.base import Report
from tokpipe.engine.progress import human_bytes


class InputShare:
    """How much of a split's size is done, so that a task's shares add up to exactly its size whatever its reader says.

    A reader counts the blocks it has read; for a range of a few kilobytes that is more than the range.
    """

    def __init__(self, num_bytes: int) -> None:
        self.left = num_bytes

    def take(self, num_bytes: int) -> int:
        """Book some more as done; returns how much of it counts."""
        taken = min(num_bytes, self.left)
        self.left -= taken
        return taken


class StageTasks(ABC):
    """The numbered tasks of one stage; subclasses do the work of one."""

    def __init__(self, store: Store, plan: Plan, stage: str, sizes: list[int]) -> None:
        self.store = store
        self.plan = plan
        self.stage = stage
        self.config = plan.config(store.out)
        self._sizes = sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def size(self, index: int) -> int:
        """Bytes of input of one task."""
        return self._sizes[index]

    def missing(self) -> list[int]:
        """Tasks without a receipt, largest first."""
        done = finished_tasks(self.store, self.stage)
        return sorted((index for index in range(len(self)) if index not in done), key=lambda index: (-self._sizes[index], index))

    def name(self, index: int) -> str:
        """Stage, number and size."""
        return f"{self.label(index)} ({human_bytes(self.size(index))})"

    def label(self, index: int) -> str:
        """Stage and number: names the attempts at the task."""
        return f"{self.stage}-{index:05d}"

    def run(self, index: int, report: Report) -> None:
        """Do one task unless its receipt is there."""
        name = receipt_name(self.stage, index)
        if self.store.exists(name):
            return
        with self.store.attempt(self.label(index)) as attempt:
            receipt = self.work(index, attempt, report)
            self.store.put_receipt(name, receipt.to_bytes())

    @abstractmethod
    def work(self, index: int, attempt: Attempt, report: Report) -> Receipt:
        """Do one task in the attempt's folder, publish its files, and return the receipt that names them."""
