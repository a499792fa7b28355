"""Training a tokenizer on a corpus, beside SentencePiece training on its text: seconds, memory, pieces in common.

Each command is a process of its own, so that its peak memory is its own, and they take turns, so that a slow minute of the
machine falls on all. Twice: both read the corpus as it lies (decompression and JSON included), and both read plain text that was
written before, a document a line, which is how SentencePiece is used. Same settings; languages are left as they are, because
weights are what SentencePiece's own training cannot do.

    python scripts/bench_train_tokenizer.py ../shared/corpus
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import sentencepiece as spm

from tokpipe.cli.corpus_text import iter_texts
from tokpipe.corpus import CorpusConfig
from tokpipe.tokenizer import TrainConfig
from tokpipe.tokenizer.train import trainer_options
from tokpipe.tokenizer.trainer_process import train

COUNT, FROM_COUNTS = "tokpipe: count alone", "tokpipe: train from counts alone"
CORPUS, PLAIN = "tokpipe: count and train", "tokpipe: count and train, plain text"
OWN_CORPUS, OWN_PLAIN = "SentencePiece on the text", "SentencePiece, plain text"


def lines(corpus: str) -> Iterator[bytes]:
    """The corpus as SentencePiece reads it: line by line."""
    for _, texts in iter_texts(CorpusConfig(corpus=corpus), held_out=0.0, keep_held_out=False):
        for text in texts.to_pylist():
            for line in text.split("\n"):
                if line:
                    yield line.encode()


def train_on_text(corpus: str, vocab_size: int, out: Path) -> None:
    """SentencePiece's own training: on a plain file by itself, on anything else through tokpipe's readers."""
    config = TrainConfig(vocab_size=vocab_size)
    with trainer_options(config, max_sentence_length=1 << 30) as options:
        if corpus.endswith(".txt"):
            prefix = str(out.with_suffix(""))
            spm.SentencePieceTrainer.train(input=corpus, model_prefix=prefix, **options)
        else:
            out.write_bytes(train(lines(corpus), options))


def timed(command: list[str]) -> tuple[float, float, float]:
    """Seconds on the clock, seconds of processor time, and peak resident memory in MB of a command's largest process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def pieces(model: Path) -> list[str]:
    """The pieces of a model in order."""
    processor = spm.SentencePieceProcessor(model_file=str(model))
    return [processor.id_to_piece(i) for i in range(processor.vocab_size())]


def bench(corpus: str, vocab_size: int, rounds: int) -> dict[str, Any]:
    """Run the commands in turns and say what each took: medians."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counts, text = folder / "all.counts", folder / "text.txt"
        with text.open("wb") as file:
            file.writelines(line + b"\n" for line in lines(corpus))
        tokpipe = [sys.executable, "-m", "tokpipe", "tokenizer"]
        size = ["--vocab-size", str(vocab_size)]
        settings = [*size, "--language-temperature", "1"]
        plain = ["--corpus", str(text), "--text-documents", "line"]
        own = [sys.executable, __file__, *size, "--own"]
        commands = {
            COUNT: [*tokpipe, "count", "--corpus", corpus, "--out", str(counts)],
            FROM_COUNTS: [*tokpipe, "train", "--counts", str(counts), "--out", str(folder / "a"), *settings],
            CORPUS: [*tokpipe, "train", "--corpus", corpus, "--out", str(folder / "b"), *settings],
            OWN_CORPUS: [*own, str(folder / "own.model"), corpus],
            PLAIN: [*tokpipe, "train", *plain, "--out", str(folder / "c"), *settings],
            OWN_PLAIN: [*own, str(folder / "plain.model"), str(text)],
        }
        # Once on a little, so that compiling the kernels is not in the figures.
        (folder / "some.txt").write_bytes(text.open("rb").read(100_000).rpartition(b"\n")[0])
        some = ["--corpus", str(folder / "some.txt"), "--vocab-size", "600", "--out", str(folder / "some")]
        timed([*tokpipe, "train", *some])
        runs: dict[str, list[tuple[float, float, float]]] = {command: [] for command in commands}
        for _ in range(rounds):
            for command, words in commands.items():
                runs[command].append(timed(words))
        medians = {command: [median(column) for column in zip(*some, strict=True)] for command, some in runs.items()}
        ours, theirs = pieces(folder / "b" / "tokenizer.model"), pieces(folder / "own.model")
        return {
            "rounds": rounds,
            "commands": medians,
            "ratios": {CORPUS: _ratios(medians, CORPUS, OWN_CORPUS), PLAIN: _ratios(medians, PLAIN, OWN_PLAIN)},
            "pieces": len(ours),
            "common": len({*ours} & {*theirs}),
            "equal": ours == theirs,
        }


def _ratios(medians: dict[str, list[float]], ours: str, theirs: str) -> tuple[float, float]:
    """Our clock and processor seconds by theirs."""
    return medians[ours][0] / medians[theirs][0], medians[ours][1] / medians[theirs][1]


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--own", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.own:
        train_on_text(options.corpus, options.vocab_size, options.own)
        return
    result = bench(options.corpus, options.vocab_size, options.rounds)
    if options.json:
        print(json.dumps(result))
        return
    print(f"medians of {result['rounds']} rounds")
    for name, (clock, processor, megabytes) in result["commands"].items():
        print(f"{name:38} {clock:6.1f} s on the clock {processor:6.1f} s of processor {megabytes:7.0f} MB")
    for name, (clock, processor) in result["ratios"].items():
        print(f"{name:38} {clock:6.2f} of SentencePiece's clock {processor:6.2f} of its processor time")
    print(f"{result['common']:,} of {result['pieces']:,} pieces in common; equal in order: {result['equal']}")


if __name__ == "__main__":
    main()
