"""The commands `build`, `tokenize` and `clean`: exit codes, JSON on stdout, messages on stderr, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tokpipe.cli.build import build as build_command
from tokpipe.cli.build_options import build_config, pair, size
from tokpipe.cli.main import cli
from tokpipe.cli.tokenizer import train as train_command
from tokpipe.errors import SettingsChangedError
from tokpipe.tokenizer import TrainConfig

TOKPIPE = [sys.executable, "-m", "tokpipe"]


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    """300 short documents of two sources."""
    folder = tmp_path_factory.mktemp("raw")
    for source, word in (("en", "garden"), ("hi", "बगीचा")):
        lines = [json.dumps({"text": f"{word} {n} {word}-{n * 7919 % 100_003}"}, ensure_ascii=False) for n in range(150)]
        (folder / f"{source}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def built(raw, tmp_path_factory) -> Path:
    """A finished dataset."""
    out = tmp_path_factory.mktemp("out") / "data"
    done = subprocess.run(
        [*TOKPIPE, "build", "--corpus", raw, "--out", out, "--vocab-size", "420", "--workers", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is finished." in done.stdout and "tokenize: 100%" in done.stderr
    return out


def invoke(*arguments: object):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def build(raw, out, *more):
    return invoke("build", "--corpus", raw, "--out", out, "--vocab-size", 420, "--workers", 1, *more)


def test_build_again_says_finished_and_gives_json(raw, built):
    again = build(raw, built, "--json")
    assert again.exit_code == 0
    report = json.loads(again.stdout)
    assert report["already_finished"] and report["sources"][0]["source"] == "en"


def test_other_settings_are_refused(raw, built):
    result = build(raw, built, "--validation", "0.5")
    assert isinstance(result.exception, SettingsChangedError)
    assert "validation: was 0.001, now 0.5" in str(result.exception)


def test_a_user_error_is_a_message_and_exit_code_1(raw, built):
    done = subprocess.run([*TOKPIPE, "build", "--corpus", "nowhere", "--out", built], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("Error: nowhere: no such file or folder") and "Traceback" not in done.stderr


def test_tokenize_uses_the_model_and_writes_no_partition(raw, built, tmp_path):
    result = invoke("tokenize", raw, "--tokenizer", built / "tokenizer", "--out", tmp_path / "d", "--workers", 1, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["dataset_id"] == json.loads((built / "dataset.json").read_bytes())["dataset_id"]
    assert not (tmp_path / "d" / "partition.json").exists()


def test_dry_run_writes_nothing(raw, tmp_path):
    result = build(raw, tmp_path / "d", "--dry-run")
    assert result.exit_code == 0 and "About 300 documents" in result.stdout and not (tmp_path / "d").exists()
    as_json = json.loads(build(raw, tmp_path / "d", "--dry-run", "--json").stdout)
    assert as_json["sources"]["hi"][0] == 1 and as_json["free_bytes"] > as_json["disk_bytes"] > 0


def test_clean_lists_what_it_removes(built):
    (built / "shards" / "stray.bin").write_bytes(b"")
    listed = invoke("clean", built, "--dry-run")
    assert listed.exit_code == 0 and listed.stdout == "shards/stray.bin\n" and "1 leftovers would be removed" in listed.stderr
    assert json.loads(invoke("clean", built, "--json").stdout) == ["shards/stray.bin"]
    assert not (built / "shards" / "stray.bin").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--validation", "1"],
        ["--workers", "-1"],
        ["--vocab-size", "0"],
        ["--language-weights", "hi"],
        ["--split-bytes", "many"],
        ["--source", "x"],
        ["--engine", "telepathy"],
        ["--text-documents", "page"],
        ["--no-such-option"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(raw, tmp_path, options):
    result = invoke("build", "--corpus", raw, "--out", tmp_path / "d", *options)
    assert result.exit_code == 2, result.output
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", 5), ("1GiB", 1 << 30), ("1 gb", 10**9), ("2.5k", 2500), ("3MiB", 3 << 20), ("7b", 7)],
)
def test_size(text, expected):
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "i", "5x", "-1", "1 2", "GiB"])
def test_size_refuses_nonsense(text):
    with pytest.raises(click.BadParameter, match="is no size"):
        size(text)


def test_pair():
    assert pair("hi=a*b=c") == ("hi", "a*b=c")


def workers_of(pid: int) -> list[int]:
    """Children of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def test_ctrl_c_says_how_to_go_on_and_leaves_no_process(raw, tmp_path):
    command = [
        *TOKPIPE,
        "build",
        "--corpus",
        raw,
        "--out",
        tmp_path / "d",
        "--vocab-size",
        "420",
        "--workers",
        "2",
        "--split-bytes",
        "1000",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    receipts = tmp_path / "d" / "build" / "receipts" / "count"
    while not (receipts.is_dir() and list(receipts.iterdir())):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    workers = workers_of(process.pid)
    os.kill(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 1 and output == "" and "Traceback" not in errors
    assert "The same command goes on from here." in errors
    assert workers and not any(Path(f"/proc/{pid}").exists() for pid in workers)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [build_command, train_command])
def test_both_commands_that_train_take_every_setting_of_training(command):
    names = {parameter.name for parameter in command.params}
    assert {field.name for field in fields(TrainConfig)} <= names


def test_settings_of_training_reach_the_config():
    given = ["--corpus", "raw", "--character-coverage", "0.9", "--language-weights", "hi=0.5, en=0.5", "--max-words", "7"]
    with build_command.make_context("build", given) as context:
        config = build_config(context.params).train
    assert (config.character_coverage, config.language_weights, config.max_words) == (0.9, (("hi", 0.5), ("en", 0.5)), 7)
