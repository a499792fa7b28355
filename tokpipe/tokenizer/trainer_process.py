"""SentencePiece's trainer in a process of its own: options and sentences in, a model out.

Started by path, it imports SentencePiece alone: its memory is the trainer's and goes back to the system when it ends, and a
trainer that is killed for its memory leaves a caller that can say so. Sentences arrive on standard input, one a line; the model
leaves on standard output, or with exit status `REFUSED` the reason why there is none.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import sentencepiece as spm

REFUSED = 3
PR_SET_PDEATHSIG = 1
# glibc's names for how many arenas its threads may have and from which size on a block is given back when it is freed.
M_ARENA_MAX, M_MMAP_THRESHOLD = -8, -3
LARGE_BLOCK = 1 << 20


class TrainerRefusedError(Exception):
    """SentencePiece's own words on why it cannot train."""


class TrainerKilledError(Exception):
    """The process ended without a model and without a word."""


def train(sentences: Iterable[bytes], options: dict[str, Any]) -> bytes:
    """Train in this process on lines without their newlines; `options` are SentencePiece's own.

    Raises:
        TrainerRefusedError: if SentencePiece cannot train.
    """
    model = io.BytesIO()
    try:
        spm.SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_writer=model, **options)
    except RuntimeError as error:
        raise TrainerRefusedError(str(error)) from error
    return model.getvalue()


class TrainerProcess:
    """The process. It is started at once, so that it is ready when the lines are; trains once; and ends with the block.

    Example:
        with TrainerProcess() as trainer:
            model = trainer.train([b"word\\t3\\n"], {"input_format": "tsv", "model_type": "bpe", "vocab_size": 300})
    """

    def __init__(self) -> None:
        command = [sys.executable, "-P", __file__, str(os.getpid())]
        # In a process group of its own: Ctrl-C is the parent's, which ends this process itself.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)

    def __enter__(self) -> TrainerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        process.kill()
        assert process.stdin and process.stdout
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.stdout.close()
        process.wait()

    def train(self, lines: Iterable[bytes], options: dict[str, Any], *, lean: bool = False) -> bytes:
        """The model trained on bytes that hold whole lines; `options` are SentencePiece's own, as JSON can carry them.

        Args:
            lines: what to train on; drawn while the trainer reads.
            options: the trainer's.
            lean: take less memory and 5 % more time. Eight threads that each keep an arena hold a quarter more than one arena,
                and freed tables go back at once: on two million words 0.97 GB instead of 1.20.

        Raises:
            TrainerRefusedError: if SentencePiece cannot train.
            TrainerKilledError: if the process was killed; says by which signal.
        """
        process = self._process
        assert process.stdin and process.stdout
        # A trainer that ended early has said why: what it did not read is of no interest.
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps({"lean": lean, "options": options}).encode() + b"\n")
            process.stdin.writelines(lines)
        with suppress(BrokenPipeError):
            process.stdin.close()
        answer = process.stdout.read()
        status = process.wait()
        if status == REFUSED:
            raise TrainerRefusedError(answer.decode())
        if status:
            signals = {number.value: number.name for number in signal.Signals}
            raise TrainerKilledError(signals.get(-status, f"exit status {status}"))
        return answer


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line[:-1]


def _malloc_leanly() -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


def main(parent: str) -> int:
    """Entry of the child process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return 1  # the parent died before this process could tie itself to it
    first = sys.stdin.buffer.readline()
    if not first:
        return 0  # nothing to train on after all
    order = json.loads(first)
    if order["lean"]:
        _malloc_leanly()
    try:
        answer, status = train(_lines(), order["options"]), 0
    except TrainerRefusedError as error:
        answer, status = str(error).encode(), REFUSED
    sys.stdout.buffer.write(answer)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
