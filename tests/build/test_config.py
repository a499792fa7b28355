"""Settings that decide the output travel as JSON and come back equal; those that do not stay out of the plan's hash."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tokpipe.build.config import BuildConfig, PartitionConfig, absolute, differences, from_settings, settings_hash
from tokpipe.corpus import CorpusConfig
from tokpipe.tokenizer import TrainConfig

BASE = BuildConfig(
    corpus=CorpusConfig(corpus="/texts", sources=(("hi", "*.hi"), ("en", "*.en"))),
    out="data",
    train=TrainConfig(vocab_size=900, language_weights=(("hi", 0.5), ("en", 0.5))),
)


def test_settings_survive_json():
    settings = json.loads(json.dumps(BASE.settings()))
    back = from_settings(settings, out="data", max_rejects=BASE.max_rejects)
    assert back == BASE


def test_settings_with_a_tokenizer_leave_training_out():
    config = replace(BASE, tokenizer="some/model", train=TrainConfig(vocab_size=1234))
    assert "train" not in config.settings()
    assert from_settings(config.settings(), out="data", max_rejects=0.5).tokenizer == str(Path("some/model").absolute())


@pytest.mark.parametrize(
    "change",
    [{"out": "elsewhere"}, {"max_rejects": 0.5}, {"partition": PartitionConfig(dp=3)}],
    ids=["out", "max_rejects", "partition"],
)
def test_free_settings_do_not_change_the_hash(change):
    assert settings_hash(replace(BASE, **change).settings(), "x") == settings_hash(BASE.settings(), "x")


@pytest.mark.parametrize("change", [{"validation": 0.1}, {"seed": 1}, {"piece_bytes": 5}, {"prepend_bos": True}, {"eos_id": 7}])
def test_other_settings_change_the_hash(change):
    assert settings_hash(replace(BASE, **change).settings(), "x") != settings_hash(BASE.settings(), "x")
    assert settings_hash(BASE.settings(), "x") != settings_hash(BASE.settings(), "y")


def test_training_settings_are_not_in_the_hash():
    other = replace(BASE, train=TrainConfig(vocab_size=901))
    assert settings_hash(other.settings(), "x") == settings_hash(BASE.settings(), "x")
    assert differences(BASE.settings(), other.settings())


def test_differences_name_old_and_new():
    other = replace(BASE, validation=0.25, corpus=replace(BASE.corpus, text_column="body"))
    assert differences(BASE.settings(), other.settings()) == [
        'corpus.text_column: was "text", now "body"',
        "validation: was 0.001, now 0.25",
    ]
    given = replace(BASE, tokenizer="/m")
    assert 'tokenizer: was "", now "/m"' in differences(BASE.settings(), given.settings())


@pytest.mark.parametrize(
    "fields",
    [
        {"validation": 1.0},
        {"validation": -0.1},
        {"out": ""},
        {"max_rejects": 2},
        {"self_check": -1},
        {"count_fraction": 1.5},
        {"piece_bytes": 0},
    ],
)
def test_config_refuses_nonsense(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        replace(BASE, **fields)


@pytest.mark.parametrize("out", ["/texts", "/texts/data"])
def test_an_output_inside_the_corpus_is_refused(out):
    with pytest.raises(ValueError, match="lies inside the corpus"):
        replace(BASE, out=out)
    assert replace(BASE, out="/texts-built").out == "/texts-built"


@pytest.mark.parametrize("out", ["link/data", "{corpus}/../raw", "file://{corpus}/data"])
def test_an_output_inside_the_corpus_is_seen_through_links_and_dots(tmp_path, monkeypatch, out):
    (tmp_path / "raw").mkdir()
    (tmp_path / "link").symlink_to("raw")
    monkeypatch.chdir(tmp_path)
    for corpus in ("raw", "link", str(tmp_path / "raw"), f"file://{tmp_path}/raw"):
        with pytest.raises(ValueError, match="lies inside the corpus"):
            replace(BASE, corpus=CorpusConfig(corpus=corpus), out=out.format(corpus=tmp_path / "raw"))


@pytest.mark.parametrize("name", ["corpus", "out", "tokenizer"])
def test_paths_that_no_file_of_ours_can_name_are_refused(name):
    bad = os.fsdecode(b"/x/\xff")
    with pytest.raises(ValueError, match=rf"{name} must be a path whose name is UTF-8, got '/x/\\udcff'"):
        replace(BASE, **{name: CorpusConfig(corpus=bad) if name == "corpus" else bad})


def test_absolute_leaves_urls_alone():
    assert absolute("s3://bucket/raw") == "s3://bucket/raw"
    assert absolute("hf:name:config") == "hf:name:config"
    assert absolute("raw") == str(Path("raw").absolute())
