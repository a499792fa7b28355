"""Estimates from a sample come near the truth, and the disk check reads nothing when there is room enough."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace

import pytest

from tokpipe.build import build, estimate_build, open_store
from tokpipe.build import estimate as module
from tokpipe.build.estimate import check_disk, sampled_splits, train_seconds
from tokpipe.corpus import plan_splits, read_inventory
from tokpipe.shards import read_manifest


def test_estimate_is_near_what_is_built(given, inline, corpus):
    estimate = estimate_build(given, open_store(given.out), workers=2)
    assert not (corpus.parent / "data").exists(), "a dry run writes nothing"
    build(given, engine=inline)
    manifest = read_manifest(given.out)
    tokens = sum(shard.num_tokens for shard in manifest.shards)
    num_bytes = sum(shard.bin_bytes + shard.idx_bytes for shard in manifest.shards)
    assert estimate.tokens == pytest.approx(tokens, rel=0.3)
    assert estimate.documents == pytest.approx(1200, rel=0.3)
    assert estimate.disk_bytes == pytest.approx(num_bytes, rel=0.4)
    assert estimate.seconds > 0 and estimate.fits
    assert estimate.sources["en"][0] == 2 and estimate.examples["en"] == "en/a.jsonl" and estimate.ignored == ("notes.pdf",)


def test_estimate_without_a_tokenizer_says_what_it_assumes(config):
    estimate = estimate_build(config, open_store(config.out), workers=2)
    text = estimate.describe()
    assert "Assumed: 1.57 tokens a word" in text and "notes.pdf" in text and "hi " in text
    assert estimate.tokens > 0
    assert estimate.seconds > train_seconds(estimate.text_bytes, config.train.max_words) and "training 3 s" in text
    json.dumps(dataclasses.asdict(estimate))


def test_training_takes_longer_with_more_distinct_words_up_to_a_limit():
    # 233 MB of Hindi and English hold 1.3 million distinct words.
    assert train_seconds(233e6, 2_000_000) == pytest.approx(3 + 4 * 1.337, rel=0.1)
    assert train_seconds(1e12, 2_000_000) == train_seconds(1e11, 2_000_000) == 11


def test_estimate_says_when_the_disk_is_too_small(config, monkeypatch):
    monkeypatch.setattr("tokpipe.build.store.LocalStore.free_bytes", lambda self: 10)
    estimate = estimate_build(config, open_store(config.out), workers=2)
    assert not estimate.fits and "TOO SMALL" in estimate.describe()


def test_every_source_is_sampled(config):
    splits = plan_splits(read_inventory(config.corpus), split_bytes=config.corpus.split_bytes)
    chosen = list(sampled_splits(splits))
    assert {split.source for split in chosen} == {"en", "hi", "mix"}
    assert len({split.index for split in chosen}) == len(chosen) <= module.MAX_SAMPLES


def test_a_source_without_text_counts_as_nothing(config, tmp_path):
    folder = tmp_path / "blank"
    folder.mkdir()
    (folder / "a.jsonl").write_text("\n\n")
    estimate = estimate_build(
        replace(config, corpus=replace(config.corpus, corpus=str(folder))), open_store(config.out), workers=1
    )
    assert estimate.tokens == 0 and estimate.documents == 0


def test_a_large_disk_is_not_sampled_for(config, monkeypatch):
    inventory = read_inventory(config.corpus)
    splits = plan_splits(inventory, split_bytes=config.corpus.split_bytes)
    monkeypatch.setattr(module, "estimate_plan", lambda *unused, **also: pytest.fail("the disk was large enough"))
    check_disk(config, inventory, splits, open_store(config.out), share_left=1.0)
