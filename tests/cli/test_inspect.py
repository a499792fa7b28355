"""tokpipe inspect: the summary and one document."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from click.testing import CliRunner

from tokpipe.cli.main import cli
from tokpipe.errors import ManifestError
from tokpipe.shards import Manifest, ShardEntry, ShardWriter, TokenizerEntry, dataset_id, write_manifest
from tokpipe.tokenizer import Tokenizer

TEXTS = ("the cat", "हाँ\tthe  dog\n", "")


@pytest.fixture(params=[False, True], ids=["plain", "bos"])
def data(request, tmp_path: Path) -> Path:
    """Three documents, with and without `<s>` before them."""
    folder = tmp_path / "data"
    (folder / "tokenizer").mkdir(parents=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat", "the dog sat"] * 20),
        model_prefix=str(folder / "tokenizer" / "tokenizer"),
        model_type="bpe",
        vocab_size=300,
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    tokenizer = Tokenizer.load(folder / "tokenizer")
    before = [tokenizer.bos_id] if request.param else []
    documents = [np.array([*before, *tokenizer.encode(text), tokenizer.eos_id]) for text in TEXTS]
    with ShardWriter(folder / "shards/x", dtype="uint16") as writer:
        writer.append(np.concatenate(documents), np.concatenate([[0], np.cumsum([len(d) for d in documents])]))
        entry = ShardEntry(name="shards/x", source="mix", held_out=False, **asdict(writer.commit()))
    tokens = TokenizerEntry(
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        eos_id=tokenizer.eos_id,
        bos_id=tokenizer.bos_id,
        prepend_bos=request.param,
    )
    manifest = Manifest(
        dataset_id=dataset_id(tokenizer.fingerprint, [entry]),
        tool_version="0.1.0",
        created="2026-01-01T00:00:00Z",
        tokenizer=tokens,
        dtype="uint16",
        sources=("mix",),
        shards=(entry,),
    )
    write_manifest(folder, manifest)
    return folder


def test_summary(data):
    result = CliRunner().invoke(cli, ["inspect", str(data)])
    assert result.exit_code == 0, result.output
    assert "mix     training       1          3" in result.stdout
    found = json.loads(CliRunner().invoke(cli, ["inspect", str(data), "--json"]).stdout)
    assert found["num_documents"] == 3


@pytest.mark.parametrize("number", range(3))
def test_a_document_comes_back_as_its_text(data, number):
    result = CliRunner().invoke(cli, ["inspect", str(data), "--doc", str(number), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["text"] == TEXTS[number]
    assert len(found["ids"]) == len(found["pieces"]) == found["num_tokens"]
    assert found["pieces"][-1] == "</s>"
    assert (found["shard"], found["index"]) == ("shards/x", number)


def test_a_document_for_a_person(data):
    result = CliRunner().invoke(cli, ["inspect", str(data), "--doc", "0"])
    assert result.exit_code == 0
    assert "document 0: shards/x, document 0 of it, source mix, training" in result.stdout
    assert "\nthe cat\n" in result.stdout
    assert "2:</s>" in result.stdout


def test_a_document_that_is_not_there(data):
    result = CliRunner().invoke(cli, ["inspect", str(data), "--doc", "3"])
    assert result.exit_code == 1
    assert isinstance(result.exception, ManifestError)
    assert "the dataset has 3 documents" in str(result.exception)


def test_wrong_usage_is_exit_code_two(data):
    assert CliRunner().invoke(cli, ["inspect", str(data), "--doc", "x"]).exit_code == 2
    assert CliRunner().invoke(cli, ["inspect", str(data), "--doc", "-1"]).exit_code == 2
