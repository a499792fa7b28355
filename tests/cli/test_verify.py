"""tokpipe verify, as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from click.testing import CliRunner

from tokpipe.cli.main import cli
from tokpipe.errors import ManifestError, VerificationError
from tokpipe.shards import Manifest, ShardEntry, ShardWriter, TokenizerEntry, dataset_id, write_manifest
from tokpipe.tokenizer import Tokenizer


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A dataset of two shards with a real, tiny tokenizer."""
    folder = tmp_path / "data"
    (folder / "tokenizer").mkdir(parents=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat", "the dog sat"] * 20),
        model_prefix=str(folder / "tokenizer" / "tokenizer"),
        model_type="bpe",
        vocab_size=300,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    tokenizer = Tokenizer.load(folder / "tokenizer")
    entries = []
    for number, texts in enumerate((["the cat", "a dog"], ["the mat"])):
        name = f"shards/en-{number:05}-000"
        documents = [np.array([*tokenizer.encode(text), tokenizer.eos_id]) for text in texts]
        with ShardWriter(folder / name, dtype="uint16") as writer:
            writer.append(np.concatenate(documents), np.concatenate([[0], np.cumsum([len(d) for d in documents])]))
            entries.append(ShardEntry(name=name, source="en", held_out=False, **asdict(writer.commit())))
    manifest = Manifest(
        dataset_id=dataset_id(tokenizer.fingerprint, entries),
        tool_version="0.1.0",
        created="2026-01-01T00:00:00Z",
        tokenizer=TokenizerEntry(
            fingerprint=tokenizer.fingerprint, vocab_size=tokenizer.vocab_size, eos_id=tokenizer.eos_id, bos_id=tokenizer.bos_id
        ),
        dtype="uint16",
        sources=("en",),
        shards=tuple(entries),
    )
    write_manifest(folder, manifest)
    return folder


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[0] ^= 1
    path.write_bytes(raw)


def test_a_good_dataset(data):
    result = CliRunner().invoke(cli, ["verify", str(data)])
    assert result.exit_code == 0, result.output
    assert "2 shards, 3 documents" in result.stdout
    assert "every promise is kept" in result.stdout


def test_json(data):
    result = CliRunner().invoke(cli, ["verify", str(data), "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["ok"] is True
    assert report["num_documents"] == 3
    assert report["problems"] == []


def test_damage_is_exit_code_one_and_json_still_comes(data):
    flip(data / "shards/en-00001-000.bin")
    result = CliRunner().invoke(cli, ["verify", str(data), "--json"])
    assert result.exit_code == 1
    assert isinstance(result.exception, VerificationError)
    report = json.loads(result.stdout)
    assert report["ok"] is False
    assert report["problems"][0]["path"] == "shards/en-00001-000.bin"


def test_worker_processes_find_the_same(data, monkeypatch):
    flip(data / "shards/en-00001-000.bin")
    alone = CliRunner().invoke(cli, ["verify", str(data), "--json", "--workers", "1"])
    monkeypatch.setattr("tokpipe.cli.verify.ALONE_BYTES", 0)
    spread = CliRunner().invoke(cli, ["verify", str(data), "--json", "--workers", "2"])
    assert spread.exit_code == alone.exit_code == 1
    assert json.loads(spread.stdout) == json.loads(alone.stdout)


def test_another_tokenizer_under_the_same_name_is_found(data, tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["other words here"] * 20),
        model_prefix=str(data / "tokenizer" / "tokenizer"),
        model_type="bpe",
        vocab_size=300,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    result = CliRunner().invoke(cli, ["verify", str(data)])
    assert result.exit_code == 1
    assert "tokenizer/tokenizer.model: is of another tokenizer" in str(result.exception)


def test_no_dataset_is_exit_code_one(tmp_path):
    (tmp_path / "a file").touch()
    for path in (tmp_path, tmp_path / "a file"):
        result = CliRunner().invoke(cli, ["verify", str(path)])
        assert result.exit_code == 1
        assert isinstance(result.exception, ManifestError)


def test_wrong_usage_is_exit_code_two():
    assert CliRunner().invoke(cli, ["verify"]).exit_code == 2


def test_the_real_process_prints_messages_not_tracebacks(data):
    flip(data / "shards/en-00000-000.idx")
    done = subprocess.run([sys.executable, "-m", "tokpipe", "verify", str(data)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Error: " in done.stderr
    assert "en-00000-000.idx: its bytes were altered" in done.stderr
    assert "Traceback" not in done.stderr
