"""The main job end to end: any number of workers, killed at any instant, refused when it should be."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece

from tokpipe.build import PartitionConfig, build, open_store, plan_build, tokenize
from tokpipe.build.receipts import FOLDER, receipt_name
from tokpipe.build.tokenize_task import TOKENIZE
from tokpipe.engine.local import LocalConfig, LocalEngine
from tokpipe.errors import (
    BuildError,
    BuildInterruptedError,
    CorpusError,
    DiskSpaceError,
    OutputLockedError,
    PartitionError,
    SettingsChangedError,
    TaskFailedError,
    TooManyRejectsError,
)
from tokpipe.shards import read_manifest, verify_dataset
from tokpipe.tokenizer import TrainConfig


@pytest.fixture(scope="module")
def engine():
    with LocalEngine(LocalConfig(workers=2)) as engine:
        yield engine


def test_build_goes_from_text_to_a_verified_dataset(config, engine, documents, shard_reader):
    report = build(config, engine=engine)
    manifest = read_manifest(config.out)
    verify_dataset(config.out)
    assert report.dataset_id == manifest.dataset_id and not report.already_finished
    assert manifest.sources == ("en", "hi", "mix") and manifest.dtype == "uint16"
    plain = sentencepiece.SentencePieceProcessor(model_file=f"{config.out}/tokenizer/tokenizer.model")
    for source, texts in documents.items():
        shards = [shard for shard in manifest.shards if shard.source == source]
        found = [document for shard in shards for document in shard_reader(Path(config.out) / shard.name)]
        assert sorted(found) == sorted([*plain.encode(text), plain.eos_id()] for text in texts)
    assert json.loads((Path(config.out) / "partition.json").read_text())["dp_world_size"] == 2
    assert not list((Path(config.out) / "build" / "attempts").iterdir())


def test_build_on_a_finished_dataset_says_so(given, inline):
    first = build(given, engine=inline)
    before, inline.ran = len(inline.ran), []
    again = build(given, engine=inline)
    assert before and not inline.ran
    assert again.already_finished and again.dataset_id == first.dataset_id
    assert "was finished before; nothing to do" in again.describe()
    assert "is finished." in (Path(given.out) / "report.txt").read_text()


def test_the_number_of_workers_changes_no_byte(config, files_of):
    seen = []
    for workers in (1, 2, 7):
        own = replace(config, out=f"{config.out}-{workers}")
        with LocalEngine(LocalConfig(workers=workers)) as engine:
            seen.append((build(own, engine=engine).dataset_id, files_of(own.out)))
    assert seen[0] == seen[1] == seen[2]


def command(config, out: str) -> list[str]:
    """The command line that builds `config` into `out`."""
    options = {
        "--corpus": config.corpus.corpus,
        "--out": out,
        "--split-bytes": config.corpus.split_bytes,
        "--vocab-size": config.train.vocab_size,
        "--validation": config.validation,
        "--workers": 2,
    }
    return [sys.executable, "-m", "tokpipe", "build", *(str(part) for pair in options.items() for part in pair)]


def num_receipts(out: str) -> int:
    return len(open_store(out).names(FOLDER))


def kill_at_a_random_moment(config, out: str, rng: random.Random) -> bool:
    """Start the build and SIGKILL it soon after some more receipts, or while it is starting; False if it finished before."""
    more = rng.randrange(0, 4)
    target = num_receipts(out) + more
    process = subprocess.Popen(command(config, out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None and num_receipts(out) < target:
        time.sleep(0.005)
    time.sleep(rng.uniform(0, 0.05 if more else 1.0))
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    return process.returncode != 0


@pytest.mark.timeout(900)  # a dozen starts of Python with its libraries: minutes on a machine that is busy otherwise
def test_a_build_killed_ten_times_gives_the_same_files(config, files_of):
    whole, out = f"{config.out}-whole", config.out
    subprocess.run(command(config, whole), check=True, capture_output=True)
    rng = random.Random(2)
    kills = 0
    while kills < 10:
        if kill_at_a_random_moment(config, out, rng):
            kills += 1
        else:
            shutil.rmtree(out)
    subprocess.run(command(config, out), check=True, capture_output=True)
    assert files_of(out) == files_of(whole)
    assert read_manifest(out).dataset_id == read_manifest(whole).dataset_id
    verify_dataset(out)


def test_plan_build_only_plans(config):
    plan = plan_build(config)
    assert plan.num_splits and not (Path(config.out) / "shards").exists()


def test_a_second_build_is_kept_out(given, inline):
    with open_store(given.out).lock(), pytest.raises(OutputLockedError, match="in use by process"):
        build(given, engine=inline)


def test_other_settings_are_refused_even_when_finished(given, inline):
    build(given, engine=inline)
    with pytest.raises(SettingsChangedError, match="validation"):
        build(replace(given, validation=0.2), engine=inline)


def test_mixed_outputs_are_refused(given, inline):
    build(given, engine=inline)
    other = replace(given, out=given.out + "2", validation=0.2)
    build(other, engine=inline)
    (Path(other.out) / "dataset.json").write_bytes((Path(given.out) / "dataset.json").read_bytes())
    with pytest.raises(BuildError, match="Two datasets were mixed"):
        build(other, engine=inline)


@pytest.fixture
def bad_corpus(config, tmp_path):
    """A config whose corpus has 2 % broken records, few enough in each task that none stops by itself."""
    folder = tmp_path / "bad"
    folder.mkdir()
    lines = [json.dumps({"text": f"number {i} of the garden"}) if i % 50 else "{broken" for i in range(500)]
    (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    return replace(config, corpus=replace(config.corpus, corpus=str(folder)), train=TrainConfig(vocab_size=430))


def test_too_many_rejects_stop_the_build_and_raising_the_limit_goes_on(bad_corpus, inline):
    with pytest.raises(TooManyRejectsError, match=r"10 of 500 records were refused in all \(2.00%\)"):
        build(bad_corpus, engine=inline)
    assert {stage for stage, _ in inline.ran} == {"count"}, "it stops before anything is trained"
    inline.ran = []
    report = build(replace(bad_corpus, max_rejects=0.05), engine=inline)
    assert "count" not in {stage for stage, _ in inline.ran}
    assert report.rejects == {"bad_json": 10} and "bad_json 10" in report.describe()
    assert read_manifest(bad_corpus.out).rejects == {"bad_json": 10}


def test_a_vocabulary_that_is_too_large_says_what_is_possible(bad_corpus, engine):
    config = replace(bad_corpus, max_rejects=0.05, train=TrainConfig())
    with pytest.raises(TaskFailedError, match=r"too large for this text: the largest possible is \d+(.|\n)*--vocab-size"):
        build(config, engine=engine)
    assert build(replace(config, train=bad_corpus.train), engine=engine).vocab_size == 430


def test_a_file_that_vanished_is_named_with_the_receipt_to_delete(given, inline, files_of):
    build(given, engine=inline)
    before = files_of(given.out)
    manifest = read_manifest(given.out)
    (Path(given.out) / "dataset.json").unlink()
    (Path(given.out) / f"{manifest.shards[0].name}.idx").unlink()
    receipt = Path(given.out) / receipt_name(TOKENIZE, 0)
    with pytest.raises(BuildError, match=rf"\.idx: is not there, but {receipt} promises"):
        build(given, engine=inline)
    receipt.unlink()
    inline.ran = []
    assert build(given, engine=inline).dataset_id == manifest.dataset_id
    assert inline.ran == [(TOKENIZE, 0)] and files_of(given.out) == before


def test_tokenize_writes_no_partition_and_needs_a_model(given, config, inline):
    report = tokenize(given, engine=inline)
    assert not (Path(given.out) / "partition.json").exists() and report.dataset_id
    with pytest.raises(ValueError, match="needs a config with a tokenizer"):
        tokenize(config, engine=inline)


def test_build_makes_and_ends_its_own_engine(given):
    assert tokenize(given).dataset_id


def test_a_layout_that_was_asked_for_and_cannot_be_had_is_an_error(given, inline):
    wish = PartitionConfig(dp=64, seq_len=2048, global_batch_size=2048, exact=True)
    with pytest.raises(PartitionError, match="The dataset is finished, but not its partition"):
        build(replace(given, partition=wish), engine=inline)
    report = build(replace(given, partition=replace(wish, exact=False)), engine=inline)
    assert report.already_finished and any("Partition" in notice for notice in report.notices)
    saved = json.loads((Path(given.out) / "partition.json").read_text())
    assert saved["dp_world_size"] <= 64 and saved["phase"]["global_batch_size"] < 2048


def test_an_existing_partition_is_kept_unless_asked(given, inline):
    build(given, engine=inline)
    assert build(replace(given, partition=PartitionConfig(dp=4)), engine=inline).notices == ()
    wish = PartitionConfig(dp=1, seq_len=16, global_batch_size=2, exact=True)
    build(replace(given, partition=wish), engine=inline)
    assert json.loads((Path(given.out) / "partition.json").read_text())["dp_world_size"] == 1


def test_a_corpus_too_small_for_any_partition_is_still_built(given, inline, tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "a"}\n')
    config = replace(given, corpus=replace(given.corpus, corpus=str(folder)), validation=0.0)
    report = build(config, engine=inline)
    assert report.sources[0].documents == 1


def test_a_corpus_without_a_document_is_an_error(given, config, inline, tmp_path):
    folder = tmp_path / "blank"
    folder.mkdir()
    (folder / "a.jsonl").write_text("\n\n\n")
    for asked in (replace(given, out=given.out + "2"), config):
        with pytest.raises(CorpusError, match=r"holds no document \(0 records, 0 of them refused; 3 blank lines\)"):
            build(replace(asked, corpus=replace(asked.corpus, corpus=str(folder))), engine=inline)


def test_a_corpus_that_is_held_out_whole_is_an_error(given, inline, tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(CorpusError, match="all of its 1 documents are held out"):
        build(replace(given, corpus=replace(given.corpus, corpus=str(folder)), validation=0.9999), engine=inline)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_between_stages_says_how_to_go_on(given, inline, monkeypatch, number):
    def interrupt(*unused):
        os.kill(os.getpid(), number)
        time.sleep(10)

    monkeypatch.setattr("tokpipe.build.run.finish_dataset", interrupt)
    with pytest.raises(BuildInterruptedError, match="The same command goes on"):
        build(given, engine=inline)


def test_what_is_read_and_what_is_not_is_logged(given, inline, caplog):
    caplog.set_level(logging.INFO)
    build(given, engine=inline)
    assert "4 files, " in caplog.text and "sources en, hi, mix" in caplog.text
    assert "ignored because of their names: 1 (notes.pdf)" in caplog.text


def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(given, inline, monkeypatch):
    monkeypatch.setattr("tokpipe.build.store.LocalStore.free_bytes", lambda self: 1000)
    with pytest.raises(DiskSpaceError, match=r"are needed for .* tokens, 1 kB are free"):
        build(given, engine=inline)
    assert not inline.ran


def test_an_output_that_cannot_be_written_is_an_error_in_words(given, inline, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    unwritable = replace(given, out=str(tmp_path / "file" / "data"))
    words = r"file/data: the build cannot go on \(.*Not a directory.*same command again"
    with pytest.raises(BuildError, match=words):
        plan_build(unwritable)
    with pytest.raises(BuildError, match=words):
        build(unwritable, engine=inline)
    plan_build(given)

    def full(self, name, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tokpipe.build.store.LocalStore.write", full)
    with pytest.raises(BuildError, match="No space left on device"):
        build(given, engine=inline)
