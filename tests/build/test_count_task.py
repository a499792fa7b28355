"""Counting sees exactly the documents that are trained on, and a tree of merges loses nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from tokpipe.build.count_task import COUNT, FAN_IN, MergeTasks, count_stages, merge_levels, num_text_bytes, table_name
from tokpipe.build.held_out import held_out_mask
from tokpipe.build.plan import make_plan
from tokpipe.build.receipts import read_stage
from tokpipe.build.store import LocalStore
from tokpipe.build.tasks import open_tasks, task_spec
from tokpipe.errors import TooManyRejectsError
from tokpipe.tokenizer import WordCounter, document_hashes, iter_counts, merge_counts


@pytest.mark.parametrize(
    ("tables", "levels"),
    [(0, []), (1, []), (2, [1]), (FAN_IN, [1]), (FAN_IN + 1, [2, 1]), (300, [19, 2, 1]), (5000, [313, 20, 2, 1])],
)
def test_merge_levels(tables, levels):
    assert merge_levels(tables) == levels


def rows(path) -> list[tuple[str, int, int]]:
    return [
        (word, int(source), int(count))
        for block in iter_counts(path)
        for word, source, count in zip(block.words().to_pylist(), block.sources, block.counts, strict=True)
    ]


def test_counts_are_those_of_the_documents_that_are_not_held_out(config, inline, documents, tmp_path):
    config = replace(config, corpus=replace(config.corpus, split_bytes=3000), validation=0.3)
    store = LocalStore(config.out)
    plan = make_plan(config, store)
    assert len(plan.counted) > FAN_IN, "more than one level of merging"
    for stage in count_stages(plan):
        inline.run(task_spec(config.out, stage))
    expected = []
    for source, texts in documents.items():
        column = pa.array(texts, pa.large_string())
        kept = column.filter(pa.array(~held_out_mask(document_hashes(column), 0.3)))
        assert 0 < len(kept) < len(column)
        with WordCounter(source, max_words=1 << 16) as counter:
            counter.add(pa.concat_arrays([kept]))
            counter.write(tmp_path / source)
        expected.append(tmp_path / source)
    merge_counts(expected, tmp_path / "all")
    assert rows(store.local(table_name(store, plan))) == rows(tmp_path / "all")
    receipts = read_stage(store, COUNT, len(plan.counted), plan.hash)
    assert sum(receipt.num_records for receipt in receipts) == 1200
    assert sum(receipt.input_bytes for receipt in receipts) == pytest.approx(plan.num_bytes, rel=0.01)


def test_counting_nothing_but_held_out_documents_is_fine(config, inline):
    config = replace(config, validation=0.999)
    plan = make_plan(config, LocalStore(config.out))
    inline.run(task_spec(config.out, COUNT))
    assert open_tasks(config.out, COUNT).missing() == []
    assert plan.counted


def test_tasks_say_what_they_are(config):
    make_plan(config, LocalStore(config.out))
    tasks = open_tasks(config.out, COUNT)
    assert tasks.name(0).startswith("count-00000 (") and tasks.name(0).endswith(" of en")
    sizes = [tasks.size(index) for index in tasks.missing()]
    assert sizes == sorted(sizes, reverse=True)


def test_merge_tasks_weigh_what_they_read(config, inline):
    store = LocalStore(config.out)
    plan = make_plan(config, store)
    inline.run(task_spec(config.out, COUNT))
    tasks = MergeTasks(store, plan, 0)
    tables = [store.local(name) for receipt in read_stage(store, COUNT, len(plan.counted), plan.hash) for name in receipt.files]
    assert sum(tasks.size(index) for index in range(len(tasks))) == sum(path.stat().st_size for path in tables)


def test_a_task_that_refuses_too_much_stops_by_itself(config, inline, tmp_path):
    folder = tmp_path / "bad"
    folder.mkdir()
    lines = [json.dumps({"text": f"number {i}"}) if i % 50 else "{broken" for i in range(2000)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    config = replace(config, corpus=replace(config.corpus, corpus=str(folder), split_bytes=1 << 20))
    make_plan(config, LocalStore(config.out))
    with pytest.raises(
        TooManyRejectsError, match=r"40 of 2,000 records were refused so far \(2.00%\)(.|\n)*a.jsonl, 0: bad_json"
    ):
        inline.run(task_spec(config.out, COUNT))


def test_num_text_bytes_needs_no_copy():
    texts = pa.array(["a", "हि", "xyz"], pa.large_string())
    assert num_text_bytes(texts) == 10
    assert num_text_bytes(texts[1:]) == 9
    assert num_text_bytes(texts[:0]) == 0
