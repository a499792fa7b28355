"""Shards hold what SentencePiece gives for every document, in order; a restart goes on after the last piece."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import sentencepiece

from tokpipe.build import count_task, tokenize_task
from tokpipe.build.count_task import COUNT
from tokpipe.build.held_out import held_out_mask
from tokpipe.build.piece import PieceName
from tokpipe.build.plan import make_plan
from tokpipe.build.receipts import piece_name, read_stage
from tokpipe.build.store import LocalStore
from tokpipe.build.tasks import open_tasks, task_spec
from tokpipe.build.tokenize_task import TOKENIZE
from tokpipe.corpus import CorpusConfig, read_split
from tokpipe.errors import CorpusChangedError, SelfCheckError
from tokpipe.tokenizer import Tokenizer, document_hashes


def tokenize_all(config, inline):
    """Plan and run the tokenize stage; returns its receipts."""
    store = LocalStore(config.out)
    plan = make_plan(config, store)
    inline.run(task_spec(config.out, TOKENIZE))
    return read_stage(store, TOKENIZE, plan.num_splits, plan.hash)


def stored(receipts, out, shard_reader, source, *, held_out):
    return [
        document
        for receipt in receipts
        for shard in receipt.shards
        if shard.source == source and shard.held_out == held_out
        for document in shard_reader(Path(out) / shard.name)
    ]


def sides(texts: list[str], fraction: float) -> tuple[list[str], list[str]]:
    """(training, held-out) documents, in order."""
    mask = held_out_mask(document_hashes(pa.array(texts, pa.large_string())), fraction)
    return [t for t, held in zip(texts, mask, strict=True) if not held], [t for t, held in zip(texts, mask, strict=True) if held]


@pytest.mark.parametrize("prepend_bos", [False, True])
def test_shards_equal_sentencepiece_document_by_document(given, inline, documents, model, shard_reader, prepend_bos):
    config = replace(given, prepend_bos=prepend_bos)
    receipts = tokenize_all(config, inline)
    plain = sentencepiece.SentencePieceProcessor(model_file=str(model / "tokenizer.model"))
    first = [plain.bos_id()] if prepend_bos else []
    for source, texts in documents.items():
        for held_out, side in zip((False, True), sides(texts, config.validation), strict=True):
            assert side
            expected = [[*first, *plain.encode(text), plain.eos_id()] for text in side]
            assert stored(receipts, config.out, shard_reader, source, held_out=held_out) == expected
    assert sum(receipt.checked_bytes for receipt in receipts) > 0
    assert sum(receipt.num_documents for receipt in receipts) == 1200


@pytest.fixture
def small_batches(monkeypatch):
    """Readers that hand out about 2 kB at a time, so that pieces of a few kB exist."""
    monkeypatch.setattr("tokpipe.corpus.batches.BATCH_BYTES", 2000)
    monkeypatch.setattr("tokpipe.corpus.record_blocks.BLOCK_BYTES", 2000, raising=False)


@pytest.fixture
def stream(tmp_path, documents):
    """One compressed file, some of its lines broken."""
    import gzip

    folder = tmp_path / "stream"
    folder.mkdir()
    lines = [json.dumps({"text": text}, ensure_ascii=False) for texts in documents.values() for text in texts]
    for number in range(0, len(lines), 97):
        lines[number] = lines[number][:-3]
    (folder / "all.jsonl.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return folder


def of_stream(given, stream, **changes):
    corpus = CorpusConfig(corpus=str(stream))
    return replace(given, corpus=corpus, piece_bytes=20_000, max_rejects=0.1, **changes)


def test_a_restart_goes_on_after_the_last_piece(given, inline, stream, small_batches, monkeypatch, files_of):
    whole = of_stream(given, stream)
    receipts = tokenize_all(whole, inline)
    pieces = {shard.name.removesuffix("-held-out") for receipt in receipts for shard in receipt.shards}
    assert len(pieces) >= 5, "the stream gives several pieces"
    assert len(receipts[0].rejects) and len(list((Path(whole.out) / "rejects").iterdir())) >= 3

    broken = of_stream(given, stream, out=whole.out + "-broken")
    store = LocalStore(broken.out)
    plan = make_plan(broken, store)
    real = Tokenizer.encode_batch
    calls = []

    def fail_later(self, texts, **ids):
        calls.append(len(texts))
        if len(calls) % 25 == 0:
            raise OSError("the disk went away")
        return real(self, texts, **ids)

    monkeypatch.setattr(Tokenizer, "encode_batch", fail_later)
    failures = 0
    while open_tasks(broken.out, TOKENIZE).missing():
        try:
            inline.run(task_spec(broken.out, TOKENIZE))
        except OSError:
            failures += 1
            assert store.exists(piece_name(TOKENIZE, 0, 0)), "finished pieces have receipts"
    assert failures >= 2
    again = read_stage(store, TOKENIZE, 1, plan.hash)
    assert [replace(receipt, plan="") for receipt in again] == [replace(receipt, plan="") for receipt in receipts]
    mine, other = files_of(broken.out), files_of(whole.out)
    assert {name for name in mine if "receipts" not in name} == {name for name in other if "receipts" not in name}
    assert all(mine[name] == other[name] for name in mine if "receipts" not in name)
    assert not store.exists(piece_name(TOKENIZE, 0, 0)), "the task's receipt stands for its pieces"


def test_rejects_are_listed_by_place(given, inline, stream):
    config = of_stream(given, stream)
    receipts = tokenize_all(config, inline)
    assert receipts[0].rejects == {"bad_json": 13} and receipts[0].num_records == 1200
    lines = [json.loads(line) for name in receipts[0].files for line in (Path(config.out) / name).read_text().splitlines()]
    assert len(lines) == 13 and lines[0]["position"] == 0 and lines[0]["path"] == "all.jsonl.gz"
    assert receipts[0].places[0].startswith("all.jsonl.gz, 0: bad_json")


def test_progress_adds_up_to_the_size_of_the_split(given, stream):
    config = of_stream(given, stream)
    make_plan(config, LocalStore(config.out))
    tasks = open_tasks(config.out, TOKENIZE)
    reports = []
    tasks.run(0, reports.append)
    assert sum(report.text_bytes for report in reports) == tasks.size(0)
    assert sum(report.documents for report in reports) == 1187
    tasks.run(0, reports.append)  # done already: returns at once
    assert sum(report.documents for report in reports) == 1187


def test_a_wrong_id_fails_the_task_and_names_the_document(given, inline, monkeypatch):
    real = Tokenizer.encode_batch

    def wrong(self, texts, **ids):
        tokens, offsets = real(self, texts, **ids)
        tokens = np.array(tokens)
        tokens[offsets[:-1]] ^= 1
        return tokens, offsets

    monkeypatch.setattr(Tokenizer, "encode_batch", wrong)
    with pytest.raises(SelfCheckError, match=r"\.jsonl(\.gz)?, byte [\d,]+: the ids differ"):
        tokenize_all(replace(given, self_check=1e-9), inline)
    assert not list(Path(given.out).glob("shards/*")), "nothing of the task is published"


@pytest.mark.parametrize(
    ("source", "slug"),
    [("hi", "hi"), ("हिन्दी ग्रंथ", r"[\w.-]+"), ("../x y", "_x_y"), ("...", "_"), ("a" * 200, "a" * 80), ("क" * 80, "क" * 66)],
)
def test_shard_names_are_plain_file_names(source, slug):
    name = PieceName(plan="p", stage="tokenize", task=3, piece=7, source=source)
    assert re.fullmatch(rf"shards/{slug}-00003-007", name.shard)
    assert name.rejects == "rejects/00003-007.jsonl"


@pytest.mark.parametrize("change", ["shorter", "as long", "gone"])
@pytest.mark.parametrize("stage", [COUNT, TOKENIZE])
def test_a_file_that_changes_under_a_task_is_named_and_nothing_is_published(
    config, given, inline, documents, tmp_path, monkeypatch, stage, change
):
    path = tmp_path / "changing" / "en.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents["en"]))
    own = config if stage == COUNT else given
    own = replace(own, corpus=CorpusConfig(corpus=str(path.parent)))
    make_plan(own, LocalStore(own.out))

    def change_it():
        if change == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[: None if change == "as long" else 5000])

    def read_and_change(*args, **kwargs):
        for number, batch in enumerate(read_split(*args, **kwargs)):
            if number == 0:
                change_it()
            yield batch

    monkeypatch.setattr(tokenize_task if stage == TOKENIZE else count_task, "read_split", read_and_change)
    with pytest.raises(CorpusChangedError, match=r"changing/en\.jsonl: (was changed|cannot be seen).*--out"):
        inline.run(task_spec(own.out, stage))
    published = {"shards", "rejects", "build/counts", "build/receipts"}
    assert not [name for folder in published for name in LocalStore(own.out).names(folder)]
