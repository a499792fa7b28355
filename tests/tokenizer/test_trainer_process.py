"""The trainer's own process: the same model as in this one, and what its caller hears when there is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tokpipe.errors import TrainingError
from tokpipe.tokenizer import TrainConfig, WordCounter, train_tokenizer
from tokpipe.tokenizer import train as train_module
from tokpipe.tokenizer.train import sentencepiece_options
from tokpipe.tokenizer.trainer_process import TrainerProcess, TrainerRefusedError, train

OPTIONS = sentencepiece_options(TrainConfig(vocab_size=420)) | {"input_format": "tsv"}
ROWS = [
    f"{word}{other}\t{number}".encode() for number, word in enumerate(["नमस्ते", "hello", "world"], 5) for other in ["", "s", "!"]
]


def train_apart(lines: Iterable[bytes], options: dict[str, Any], *, lean: bool = False) -> bytes:
    with TrainerProcess() as trainer:
        return trainer.train(lines, options, lean=lean)


def children() -> list[int]:
    """Processes whose parent is this one."""
    return [int(pid) for path in Path("/proc/self/task").iterdir() for pid in (path / "children").read_text().split()]


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process ends within some seconds; one that nobody has waited for yet counts as ended."""
    for _ in range(round(seconds / 0.05)):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("lean", [False, True])
def test_trains_the_same_model_as_in_this_process(lean):
    assert train_apart([row + b"\n" for row in ROWS], OPTIONS, lean=lean) == train(ROWS, OPTIONS)


def test_a_trainer_that_gets_nothing_ends():
    with TrainerProcess():
        started = children()
    assert started and gone(started[-1])


def test_ctrl_c_does_not_reach_the_trainer():
    # Not even while it starts, when it would print a traceback: a terminal interrupts one process group.
    with TrainerProcess():
        assert os.getpgid(children()[-1]) != os.getpgid(0)


def test_how_lines_are_grouped_changes_nothing():
    whole = b"".join(row + b"\n" for row in ROWS)
    assert train_apart([whole[:7], whole[7:]], OPTIONS) == train(ROWS, OPTIONS)


@pytest.mark.parametrize("megabytes_behind", [0, 8])
def test_a_refusal_comes_in_sentencepieces_own_words(megabytes_behind):
    rest = [b"word\t1\n" * 131_072] * megabytes_behind  # more than a pipe holds: the trainer is gone while it is written
    with pytest.raises(TrainerRefusedError, match="freq") as apart:
        train_apart([b"word\tmany\n", *rest], OPTIONS)
    with pytest.raises(TrainerRefusedError) as here:
        train([b"word\tmany"], OPTIONS)
    assert str(apart.value) == str(here.value)


def test_a_killed_trainer_is_named_with_what_to_do(tmp_path, monkeypatch):
    with WordCounter("en") as counter:
        counter.add(pa.array(["some words to count"], pa.large_string()))
        counter.write(tmp_path / "x.counts")

    def rows_and_death(parts: object) -> Iterator[bytes]:
        os.kill(children()[-1], signal.SIGKILL)
        yield b"a\t1\n"

    monkeypatch.setattr(train_module, "_rows", rows_and_death)
    with pytest.raises(TrainingError, match=r"ended \(SIGKILL\).*lower --max-words"):
        train_tokenizer(tmp_path / "x.counts", TrainConfig(vocab_size=600), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_failing_source_of_lines_ends_the_trainer():
    started: list[int] = []

    def lines() -> Iterator[bytes]:
        yield b"a\t1\n"
        started.extend(children())
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        train_apart(lines(), OPTIONS)
    assert started and gone(started[-1])


def test_a_trainer_ends_with_its_parent():
    code = (
        "import sys, time\n"
        "from tokpipe.tokenizer.trainer_process import TrainerProcess\n"
        "from pathlib import Path\n"
        "def lines():\n"
        "    yield b'a\\t1\\n'\n"
        "    print(Path('/proc/self/task/%d/children' % __import__('os').getpid()).read_text().split()[-1], flush=True)\n"
        "    time.sleep(60)\n"
        "with TrainerProcess() as trainer: trainer.train(lines(), {})\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    trainer = int(parent.stdout.readline())
    assert not gone(trainer, seconds=0.3)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(trainer)
