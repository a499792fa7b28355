"""Counting the words of the corpus, and merging the tables: what the tokenizer is trained from."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tokpipe.build.held_out import held_out_mask
from tokpipe.build.plan import Plan, check_split, read_splits, split_sizes
from tokpipe.build.receipts import Receipt, read_stage
from tokpipe.build.rejects import check_task, places
from tokpipe.build.stage import InputShare, StageTasks
from tokpipe.build.store import Attempt, Store
from tokpipe.corpus import RejectLog, read_split
from tokpipe.engine.base import Counters, Report
from tokpipe.tokenizer import WordCounter, document_hashes, merge_counts

COUNT = "count"
FAN_IN = 16


def merge_levels(num_tables: int) -> list[int]:
    """Number of tables after each level of merging, down to one.

    Example:
        `merge_levels(300)` is `[19, 2, 1]`; `merge_levels(1)` is `[]`.
    """
    levels = []
    while num_tables > 1:
        num_tables = -(-num_tables // FAN_IN)
        levels.append(num_tables)
    return levels


def merge_stage(level: int) -> str:
    """Name of one level's stage."""
    return f"merge-{level}"


def count_stages(plan: Plan) -> list[str]:
    """Counting and the levels of merging."""
    return [COUNT, *(merge_stage(level) for level in range(len(merge_levels(len(plan.counted)))))]


def table_name(store: Store, plan: Plan) -> str:
    """Name of the one table that is left when every count stage is done."""
    return read_stage(store, count_stages(plan)[-1], 1, plan.hash)[0].files[0]


class CountTasks(StageTasks):
    """Count one split's words: rejected and held-out documents apart, so exactly the text that is trained on."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self._splits = read_splits(store, plan)
        sizes = split_sizes(self._splits)
        super().__init__(store, plan, COUNT, [sizes[split] for split in plan.counted])

    def name(self, index: int) -> str:
        """Stage, number, source and size."""
        return f"{super().name(index)} of {self._splits[self.plan.counted[index]].source}"

    def work(self, index: int, attempt: Attempt, report: Report) -> Receipt:
        """Read, count, publish the table."""
        split = self._splits[self.plan.counted[index]]
        name = f"build/counts/{self.label(index)}"
        share, done = InputShare(split.num_bytes), Counters()
        with RejectLog() as rejects, WordCounter(split.source, spill_folder=attempt.folder) as counter:
            for batch in read_split(split, self.config.corpus, rejects):
                for texts in self._training(batch.texts):
                    counter.add(texts)
                now = Counters(
                    documents=len(batch.texts),
                    text_bytes=share.take(batch.num_input_bytes),
                    decoded_bytes=num_text_bytes(batch.texts),
                )
                report(now)
                done = done + now
                check_task(rejects, done.text_bytes, self.plan)
            check_split(self.store, self.plan, split)
            counter.write(attempt.path(name))
        report(Counters(text_bytes=share.left))
        table_bytes = attempt.path(name).stat().st_size
        return Receipt(
            plan=self.plan.hash,
            stage=self.stage,
            task=index,
            files=(attempt.publish(name),),
            num_records=rejects.num_records,
            num_documents=done.documents,
            text_bytes=done.decoded_bytes,
            input_bytes=split.num_bytes,
            blank=rejects.blank,
            rejects=dict(sorted(rejects.counts.items())),
            places=places(rejects),
            facts={"table_bytes": table_bytes},
        )

    def _training(self, texts: pa.LargeStringArray) -> Iterator[pa.LargeStringArray]:
        mask = held_out_mask(document_hashes(texts), self.config.validation)
        if not mask.any():
            yield texts
        elif not mask.all():
            yield texts.filter(pa.array(~mask))


class MergeTasks(StageTasks):
    """Merge up to 16 tables of the level below into one."""

    def __init__(self, store: Store, plan: Plan, level: int) -> None:
        below = len(plan.counted) if level == 0 else merge_levels(len(plan.counted))[level - 1]
        receipts = read_stage(store, count_stages(plan)[level], below, plan.hash)
        self._tables = [receipt.files[0] for receipt in receipts]
        sizes = np.array([receipt.facts["table_bytes"] for receipt in receipts], np.int64)
        super().__init__(store, plan, merge_stage(level), np.add.reduceat(sizes, np.arange(0, below, FAN_IN)).tolist())

    def work(self, index: int, attempt: Attempt, report: Report) -> Receipt:
        """Merge, publish."""
        name = f"build/counts/{self.label(index)}"
        tables = self._tables[index * FAN_IN : (index + 1) * FAN_IN]
        merge_counts([self.store.local(table) for table in tables], attempt.path(name))
        table_bytes = attempt.path(name).stat().st_size
        report(Counters(text_bytes=self.size(index)))
        files = (attempt.publish(name),)
        return Receipt(plan=self.plan.hash, stage=self.stage, task=index, files=files, facts={"table_bytes": table_bytes})


def num_text_bytes(texts: pa.LargeStringArray) -> int:
    """UTF-8 bytes of a column that starts at offset 0, without touching them."""
    offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, 8 * texts.offset)
    return int(offsets[-1] - offsets[0])
