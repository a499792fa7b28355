"""A plan is made once; whatever would change the output on the same folder is refused and named."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from tokpipe.build.plan import (
    COUNT_ALL_BYTES,
    MODEL,
    PLAN,
    counted_splits,
    default_count_fraction,
    make_plan,
    read_plan,
    read_splits,
    split_sizes,
)
from tokpipe.build.store import LocalStore
from tokpipe.corpus import CorpusConfig
from tokpipe.errors import BuildError, CorpusChangedError, CorpusError, SettingsChangedError
from tokpipe.tokenizer import Tokenizer


@pytest.fixture
def store(config) -> LocalStore:
    return LocalStore(config.out)


def test_make_plan_lists_cuts_and_saves(config, store):
    plan = make_plan(config, store)
    assert plan.sources == ("en", "hi", "mix") and plan.num_files == 4 and plan.num_ignored == 1
    splits = read_splits(store, plan)
    assert len(splits) == plan.num_splits > 6
    assert sum(split_sizes(splits)) == plan.num_bytes
    assert plan.counted == tuple(range(plan.num_splits))
    assert read_plan(store) == plan
    assert plan.config(config.out) == replace(config, partition=plan.config(config.out).partition)


def test_make_plan_again_gives_the_same(config, store):
    assert make_plan(config, store) == make_plan(config, store)


def test_make_plan_takes_a_given_model_in(given, store, model):
    plan = make_plan(given, store)
    assert plan.counted == () and plan.tokenizer_fingerprint
    assert store.read(MODEL) == (model / "tokenizer.model").read_bytes()
    single = replace(given, tokenizer=str(model / "tokenizer.model"), out=given.out + "2")
    assert make_plan(single, LocalStore(single.out)).tokenizer_fingerprint == plan.tokenizer_fingerprint


def test_warm_units_beside_a_given_model_are_taken_in(given, store, model, tmp_path):
    folder = tmp_path / "warm"
    shutil.copytree(model, folder)
    Tokenizer.load(model).build_warm_units(model.parent / "counts", folder)
    make_plan(replace(given, tokenizer=str(folder)), store)
    for name in ("tokenizer.model", "units.npy", "unit_keys.npy", "unit_ids.npy", "units.json"):
        assert store.read(f"tokenizer/{name}") == (folder / name).read_bytes()


def test_free_settings_may_change(config, store):
    plan = make_plan(config, store)
    again = make_plan(replace(config, max_rejects=0.5), store)
    assert again.hash == plan.hash and again.max_rejects == 0.5
    assert read_plan(store).max_rejects == 0.5


def test_other_settings_are_refused_by_name(config, store):
    make_plan(config, store)
    with pytest.raises(SettingsChangedError, match=r"validation: was 0.05, now 0.5(.|\n)*another --out"):
        make_plan(replace(config, validation=0.5), store)


def test_training_settings_may_change_until_the_tokenizer_is_trained(config, store):
    plan = make_plan(config, store)
    smaller = replace(config, train=replace(config.train, vocab_size=450))
    again = make_plan(smaller, store)
    assert again.hash == plan.hash and read_plan(store).config(config.out).train.vocab_size == 450
    store.write("build/receipts/train/00000.json", b"{}")
    with pytest.raises(SettingsChangedError, match=r"train\.vocab_size: was 450, now 560"):
        make_plan(config, store)


def test_another_model_in_the_same_file_is_refused(given, store, model, tmp_path):
    path = tmp_path / "m.model"
    shutil.copy(model / "tokenizer.model", path)
    make_plan(replace(given, tokenizer=str(path)), store)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"river", b"rivel"))
    with pytest.raises(SettingsChangedError, match="holds another model"):
        make_plan(replace(given, tokenizer=str(path)), store)


@pytest.fixture
def own_corpus(corpus, config, tmp_path):
    """A copy that may be changed, and its config."""
    copy = tmp_path / "copy"
    shutil.copytree(corpus, copy)
    return copy, replace(config, corpus=replace(config.corpus, corpus=str(copy)))


def test_a_changed_corpus_is_refused_with_the_files_named(own_corpus, store):
    folder, config = own_corpus
    make_plan(config, store)
    (folder / "mix.jsonl").rename(folder / "new.jsonl")
    os.utime(folder / "en" / "a.jsonl", ns=(1, 1))
    with pytest.raises(CorpusChangedError) as caught:
        make_plan(config, store)
    message = str(caught.value)
    assert "- mix.jsonl: gone" in message and "+ new.jsonl: new" in message and "~ en/a.jsonl: stamp" in message


def test_many_changes_are_counted(own_corpus, store):
    folder, config = own_corpus
    make_plan(config, store)
    for number in range(15):
        (folder / f"more-{number}.jsonl").write_text('{"text": "x"}\n')
    with pytest.raises(CorpusChangedError, match="and 5 more"):
        make_plan(config, store)


def test_a_dataset_without_its_plan_is_left_alone(config, store):
    store.write("dataset.json", b"{}")
    with pytest.raises(SettingsChangedError, match=r"not its build/plan\.json"):
        make_plan(config, store)


def test_an_empty_corpus_is_an_error(config, store, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError):
        make_plan(replace(config, corpus=CorpusConfig(corpus=str(tmp_path / "empty"))), store)
    assert not store.exists(PLAN)


def test_read_plan_says_what_is_wrong(config, store):
    with pytest.raises(BuildError, match="is no build"):
        read_plan(store)
    make_plan(config, store)
    fields = json.loads(store.read(PLAN))
    store.write(PLAN, json.dumps({**fields, "version": 99}).encode())
    with pytest.raises(BuildError, match="has version 99, expected 1"):
        read_plan(store)
    store.write(PLAN, b"{")
    with pytest.raises(BuildError, match="cannot be understood"):
        read_plan(store)


@pytest.mark.parametrize(
    ("sources", "fraction", "chosen"),
    [
        (["en"] * 4 + ["hi"], 0.5, (0, 2, 4)),  # half of the large source, all of the small one
        (["en"] * 4 + ["hi"], 1.0, (0, 1, 2, 3, 4)),
        (["en"] * 4, 0.01, (0,)),  # never nothing
        (["en"] * 4, 0.0, ()),  # a given tokenizer: nothing is counted
        ([], 1.0, ()),
    ],
)
def test_counted_splits(sources, fraction, chosen):
    assert counted_splits(sources, fraction) == chosen


@hypothesis_given(st.lists(st.sampled_from("abc"), max_size=60).map(sorted), st.floats(0.001, 1))
def test_counted_splits_takes_its_share_of_every_source(sources, fraction):
    chosen = counted_splits(sources, fraction)
    assert len(set(chosen)) == len(chosen)
    for source in set(sources):
        own = sum(sources[index] == source for index in chosen)
        assert fraction * sources.count(source) <= own <= fraction * sources.count(source) + 1 or own == 1


def test_default_count_fraction_is_about_50_gb():
    assert default_count_fraction(COUNT_ALL_BYTES) == 1.0
    assert default_count_fraction(5 * 10**12) == pytest.approx(0.01)
