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
# Eight threads that each keep an arena hold a quarter more than one arena, and freed tables of a MB or more go back at once:
# on two million words 0.97 GB instead of 1.20, in 5 % more time. Read by glibc when the process starts; others ignore them.
LEAN_MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


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


def train_apart(lines: Iterable[bytes], options: dict[str, Any]) -> bytes:
    """Train in a process of its own on bytes that hold whole lines; `options` are SentencePiece's own, as JSON can carry them.

    Raises:
        TrainerRefusedError: if SentencePiece cannot train.
        TrainerKilledError: if the process was killed; says by which signal.
    """
    command = [sys.executable, "-P", __file__, json.dumps(options), str(os.getpid())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | LEAN_MALLOC) as process:
        assert process.stdin and process.stdout
        try:
            # A trainer that ended early has said why: what it did not read is of no interest.
            with suppress(BrokenPipeError):
                process.stdin.writelines(lines)
            with suppress(BrokenPipeError):
                process.stdin.close()
            answer = process.stdout.read()
        except BaseException:
            process.kill()
            raise
    if process.returncode == REFUSED:
        raise TrainerRefusedError(answer.decode())
    if process.returncode:
        signals = {number.value: number.name for number in signal.Signals}
        raise TrainerKilledError(signals.get(-process.returncode, f"exit status {process.returncode}"))
    return answer


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line[:-1]


def main(options: str, parent: str) -> int:
    """Entry of the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; it ends this process itself
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return 1  # the parent died before this process could tie itself to it
    try:
        answer, status = train(_lines(), json.loads(options)), 0
    except TrainerRefusedError as error:
        answer, status = str(error).encode(), REFUSED
    sys.stdout.buffer.write(answer)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
