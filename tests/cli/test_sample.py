from __future__ import annotations

import json

import numpy as np
import pytest
import sentencepiece
from click.testing import CliRunner

from tokpipe.cli.main import cli
from tokpipe.errors import ManifestError, PartitionError
from tokpipe.partition import write_partition
from tokpipe.shards import Manifest, ShardEntry, ShardWriter, TokenizerEntry, dataset_id, write_manifest

TEXTS = {"en": ["the cat sat on the mat", "a dog sat"], "hi": ["यह एक घर है", "वह घर है"]}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A dataset of eight short documents per shard, with the tokenizer that made it."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "tokenizer").mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for texts in TEXTS.values() for text in texts] * 20),
        model_prefix=str(folder / "tokenizer" / "tokenizer"),
        model_type="bpe",
        vocab_size=330,
        byte_fallback=True,
        hard_vocab_limit=False,
        add_dummy_prefix=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer" / "tokenizer.model"))
    entries = []
    for source, texts in TEXTS.items():
        documents = [[*processor.encode(text), processor.eos_id()] for text in texts * 4]
        name = f"shards/{source}-00000-000"
        with ShardWriter(folder / name, dtype="uint16") as writer:
            ids = np.array([token for document in documents for token in document], dtype=np.uint16)
            writer.append(ids, np.cumsum([0, *map(len, documents)]).astype(np.int64))
            info = writer.commit()
        fields = ("num_tokens", "num_documents", "bin_bytes", "idx_bytes", "bin_xxh3", "idx_xxh3")
        entries.append(ShardEntry(name, source, False, *(getattr(info, field) for field in fields)))
    write_manifest(
        folder,
        Manifest(
            dataset_id=dataset_id("f" * 16, entries),
            tool_version="0",
            created="2026-01-01T00:00:00+00:00",
            tokenizer=TokenizerEntry(fingerprint="f" * 16, vocab_size=processor.vocab_size(), eos_id=processor.eos_id()),
            dtype="uint16",
            sources=("en", "hi"),
            shards=tuple(entries),
        ),
    )
    return folder


def run(*arguments):
    return CliRunner().invoke(cli, ["sample", *map(str, arguments)])


LAYOUT = ("--seq-len", 12, "--global-batch-size", 2, "--weights", "en=0.5,hi=0.5", "--order", "sequential")


def test_shows_text_with_sources_and_document_starts(data):
    done = run(data, *LAYOUT)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "step 0, rank 0 of 1: 2 of 2 samples of 12 tokens"
    assert "=== sample 0: en, shards/en-00000-000 from token 0" in lines
    assert "=== sample 1: hi, shards/hi-00000-000 from token 0" in lines
    begins = [line for line in lines if line.startswith("--- document 0 of en begins")]
    assert lines[lines.index(begins[0]) + 1] == TEXTS["en"][0]
    second = run(data, *LAYOUT, "--seq-len", 7, "--step", 1).stdout
    assert "--- document 1 of en" in second and " goes on (shards/" in second


def test_json_holds_what_the_text_shows(data):
    found = json.loads(run(data, *LAYOUT, "--json").stdout)
    text = run(data, *LAYOUT).stdout
    assert found["step"] == 0 and found["rank"] == 0 and found["samples"]
    for pieces in found["samples"]:
        assert sum(len(piece["ids"]) for piece in pieces) == found["seq_len"] + 1
        assert all(piece["text"] in text and piece["shard"] in text for piece in pieces)


def test_limit_rank_and_partition_json(data):
    done = run(data, *LAYOUT, "--dp", 2, "--rank", 1, "--limit", 1)
    assert "rank 1 of 2: 1 of 1 samples" in done.stdout
    assert "=== sample 0: hi" in done.stdout
    assert isinstance(run(data).exception, PartitionError)
    assert "--seq-len and --global-batch-size" in str(run(data).exception)
    write_partition(data, dp=2, seq_len=12, global_batch_size=2, weights={"en": 0.5, "hi": 0.5})
    try:
        assert "rank 1 of 2: 1 of 1 samples of 12 tokens" in run(data, "--rank", 1).stdout
    finally:
        (data / "partition.json").unlink()


def test_a_step_is_any_that_training_can_come_to(data):
    assert run(data, *LAYOUT, "--step", 10**12).exit_code == 0
    assert run(data, *LAYOUT, "--step", 10**12 + 1).exit_code == 2


def test_held_out_and_missing_dataset(data, tmp_path):
    assert isinstance(run(tmp_path / "nowhere").exception, ManifestError)
    done = run(data, *LAYOUT, "--held-out")
    assert done.exit_code == 0
    assert "only fills up the last batch" in done.stdout
