"""Counting words and training from them, beside SentencePiece training on the text itself: seconds, memory, pieces in common.

Each stage is a process of its own, so that its peak memory is its own. Both sides read the same files (decompression and JSON
included, one process each) and train with the same settings; languages are left as they are, because weights are what
SentencePiece's own training cannot do.

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
from typing import Any

import sentencepiece as spm

from tokpipe.cli.corpus_text import iter_texts
from tokpipe.corpus import CorpusConfig
from tokpipe.tokenizer import TrainConfig
from tokpipe.tokenizer.train import run_sentencepiece


def lines(corpus: str) -> Iterator[bytes]:
    """The corpus as SentencePiece reads it: line by line."""
    for _, texts in iter_texts(CorpusConfig(corpus=corpus), held_out=0.0, keep_held_out=False):
        for text in texts.to_pylist():
            for line in text.split("\n"):
                if line:
                    yield line.encode()


def timed(command: list[str]) -> tuple[float, float, float]:
    """Seconds on the clock, seconds of processor time, and peak resident memory in MB of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


def pieces(model: Path) -> list[str]:
    """The pieces of a model in order."""
    processor = spm.SentencePieceProcessor(model_file=str(model))
    return [processor.id_to_piece(i) for i in range(processor.vocab_size())]


def bench(corpus: str, vocab_size: int, *, text: bool) -> dict[str, Any]:
    """Run the stages and say what each took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counts, model, own = folder / "all.counts", folder / "model", folder / "own.model"
        tokpipe = [sys.executable, "-m", "tokpipe", "tokenizer"]
        train = [*tokpipe, "train", "--counts", str(counts), "--vocab-size", str(vocab_size), "--language-temperature", "1"]
        # Once on one file's worth of nothing, so that compiling the kernels is not in the figures.
        (folder / "warm.jsonl").write_text('{"text": "a b"}\n')
        timed([*tokpipe, "count", "--corpus", str(folder / "warm.jsonl"), "--out", str(folder / "warm.counts")])
        stages = {
            "count": timed([*tokpipe, "count", "--corpus", corpus, "--out", str(counts)]),
            "train from counts": timed([*train, "--out", str(model)]),
        }
        result: dict[str, Any] = {"stages": stages}
        if text:
            command = [sys.executable, __file__, corpus, "--vocab-size", str(vocab_size), "--own", str(own)]
            stages["SentencePiece on the text"] = timed(command)
            ours, theirs = pieces(model / "tokenizer.model"), pieces(own)
            counted, trained, own_training = stages.values()
            ratios = [(counted[i] + trained[i]) / own_training[i] for i in (0, 1)]
            result |= {"pieces": len(ours), "common": len({*ours} & {*theirs}), "equal": ours == theirs, "ratios": ratios}
        return result


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--no-text", action="store_true", help="leave SentencePiece's own training out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--own", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.own:
        config = TrainConfig(vocab_size=options.vocab_size)
        options.own.write_bytes(run_sentencepiece(lines(options.corpus), config, max_sentence_length=1 << 30))
        return
    result = bench(options.corpus, options.vocab_size, text=not options.no_text)
    if options.json:
        print(json.dumps(result))
        return
    for name, (clock, processor, megabytes) in result["stages"].items():
        print(f"{name:28} {clock:8.1f} s on the clock {processor:8.1f} s of processor {megabytes:8.0f} MB")
    if "ratios" in result:
        clock, processor = result["ratios"]
        print(
            f"counting and training take {clock:.2f} of SentencePiece's time on the clock, {processor:.2f} of its processor time"
        )
        print(f"{result['common']:,} of {result['pieces']:,} pieces in common; equal in order: {result['equal']}")


if __name__ == "__main__":
    main()
