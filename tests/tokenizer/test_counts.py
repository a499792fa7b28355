"""Counting against a regular expression, and the promise that tasks and merge order change no byte."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokpipe.errors import TrainingError
from tokpipe.tokenizer import WordCounter, counts, iter_counts, merge_counts, read_counts_info

FEW_CHARACTERS = st.text(st.sampled_from(list("ab  \n\t\0\u2581\u2585\u2580क्ष।é😀\u200d\r")), max_size=60)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def column(texts: list[str]) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


def words_of(text: str) -> list[str]:
    """What SentencePiece's trainer cuts, by its definition: U+2581 is a space to it, a tab cannot be carried."""
    found = []
    for line in re.split("[\n\t]", text):
        found += re.findall("[ \u2581]*[^ \u2581]+|[ \u2581]+$", line)
    return [word for word in found if "\u2585" not in word]


def read_rows(path: Path) -> dict[tuple[str, str], int]:
    names = read_counts_info(path).sources
    rows: dict[tuple[str, str], int] = {}
    for block in iter_counts(path):
        for word, source, count in zip(block.words().to_pylist(), block.sources, block.counts, strict=True):
            assert (word, names[source]) not in rows
            rows[word, names[source]] = int(count)
    assert [(word.encode(), name) for word, name in rows] == sorted((word.encode(), name) for word, name in rows)
    return rows


def count(texts: list[str], path: Path, *, source: str = "s", **options) -> Path:
    with WordCounter(source, spill_folder=path.parent, **options) as counter:
        counter.add(column(texts))
        counter.write(path)
    return path


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(st.one_of(FEW_CHARACTERS, ANY_TEXT), max_size=6))
def test_count_equals_a_regular_expression(tmp_path, texts):
    path = count(texts, tmp_path / "x.counts", max_words=64)
    expected = Counter(word for text in texts for word in words_of(text))
    assert {word: number for (word, _), number in read_rows(path).items()} == expected


def test_count_keeps_totals_of_what_it_kept_and_dropped(tmp_path):
    texts = ["a bb\tcc  ", "नमस्ते \u2585x " + "y" * 30, "12"]
    path = count(texts, tmp_path / "x.counts", source="hi", max_word_bytes=20)
    info = read_counts_info(path)
    totals = info.totals["hi"]
    assert (totals.documents, totals.text_bytes) == (3, sum(len(text.encode()) for text in texts))
    assert (totals.tabs, totals.long_words, totals.long_bytes) == (1, 1, 31)
    assert (totals.reserved_words, totals.reserved_bytes) == (1, len(" \u2585x".encode()))
    assert totals.script_bytes == {"latin": 6, "devanagari": 18, "other": 4}
    assert totals.words == sum(read_rows(path).values()) == 6
    assert info.text_bytes == totals.text_bytes


def test_counter_that_spills_writes_the_same_bytes(tmp_path, text_maker):
    rng = random.Random(1)
    texts = [text_maker(rng, num_words=40) for _ in range(200)]
    whole = count(texts, tmp_path / "whole.counts")
    with WordCounter("s", spill_folder=tmp_path, max_words=64) as counter:
        for start in range(0, 200, 7):
            counter.add(column(texts[start : start + 7]))
        assert counter.num_runs > 3
        counter.write(tmp_path / "spilled.counts")
    assert whole.read_bytes() == (tmp_path / "spilled.counts").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spilled.counts", "whole.counts"]


def test_counter_of_many_runs_merges_them_in_groups(tmp_path, text_maker, monkeypatch):
    texts = [text_maker(random.Random(3)) for _ in range(20)]
    whole = count(texts, tmp_path / "whole.counts")
    monkeypatch.setattr(counts, "MAX_FAN_IN", 3)
    at_once = []
    merge = counts._merge
    monkeypatch.setattr(counts, "_merge", lambda runs: at_once.append(len(runs)) or merge(runs))
    assert count(texts, tmp_path / "spilled.counts", max_words=32).read_bytes() == whole.read_bytes()
    assert len(at_once) > 4 and max(at_once) == 3


def test_counter_whose_table_grows_writes_the_same_bytes(tmp_path, text_maker, monkeypatch):
    rng = random.Random(5)
    texts = [text_maker(rng) for _ in range(50)]
    whole = count(texts, tmp_path / "whole.counts")
    monkeypatch.setattr(counts, "FIRST_WORDS", 2)
    for name, max_words in (("grown", 1 << 12), ("grown-and-spilled", 64)):
        assert count(texts, tmp_path / name, max_words=max_words).read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("num_tasks", [1, 2, 7])
def test_merge_of_any_number_of_tasks_in_any_order_gives_the_same_bytes(tmp_path, text_maker, monkeypatch, num_tasks):
    # Small row groups, so that blocks end in the middle of everything.
    monkeypatch.setattr("tokpipe.tokenizer.counts_file.ROWS_PER_GROUP", 16)
    rng = random.Random(2)
    texts = {name: [text_maker(rng, language=name) for _ in range(40)] for name in ("hi", "en")}
    reference = tmp_path / "reference.counts"
    merge_counts([count(texts[name], tmp_path / f"{name}.counts", source=name) for name in texts], reference)
    parts = []
    for name in texts:
        for task in range(num_tasks):
            parts.append(count(texts[name][task::num_tasks], tmp_path / f"{name}-{task}.counts", source=name))
    rng.shuffle(parts)
    merge_counts(parts, tmp_path / "flat.counts")
    first = tmp_path / "first.counts"
    merge_counts(parts[: len(parts) // 2], first)
    merge_counts([*parts[len(parts) // 2 :], first], tmp_path / "tree.counts")
    assert reference.read_bytes() == (tmp_path / "flat.counts").read_bytes() == (tmp_path / "tree.counts").read_bytes()
    expected = Counter((word, name) for name in texts for text in texts[name] for word in words_of(text))
    assert read_rows(reference) == expected


def test_merge_of_many_files_goes_in_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(counts, "MAX_FAN_IN", 3)
    paths = [count([f"w{number} same"], tmp_path / f"{number}.counts") for number in range(11)]
    info = merge_counts(paths, tmp_path / "all.counts")
    rows = read_rows(tmp_path / "all.counts")
    assert rows[" same", "s"] == 11 and info.num_rows == len(rows) == 12
    assert not list(tmp_path.glob(".merge-*"))


def test_empty_text_gives_an_empty_file_that_merges(tmp_path):
    empty = count([], tmp_path / "empty.counts", source="en")
    some = count(["a"], tmp_path / "some.counts", source="hi")
    info = merge_counts([empty, some], tmp_path / "all.counts")
    assert info.sources == ("en", "hi") and read_rows(tmp_path / "all.counts") == {("a", "hi"): 1}


def test_merge_refuses_nothing_and_different_limits(tmp_path):
    with pytest.raises(TrainingError, match="at least one file"):
        merge_counts([], tmp_path / "all.counts")
    paths = [count(["a"], tmp_path / f"{limit}.counts", max_word_bytes=limit) for limit in (10, 20)]
    with pytest.raises(TrainingError, match=r"\[10, 20\]"):
        merge_counts(paths, tmp_path / "all.counts")
    assert not (tmp_path / "all.counts").exists()


@pytest.mark.parametrize("options", [{"max_words": 3}, {"max_words": 1}, {"max_word_bytes": 0}, {"max_word_bytes": 70_000}])
def test_counter_checks_its_arguments(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        WordCounter("s", **options)
