"""Real text: every document of a sample of the corpus has SentencePiece's ids, and one wrong id is found."""

from __future__ import annotations

import io
import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tokpipe.build import build
from tokpipe.engine.local import LocalConfig, LocalEngine
from tokpipe.shards import read_manifest
from tokpipe.tokenizer import TrainConfig

CHECK = Path(__file__).parents[2] / "scripts" / "check_ids.py"
NUM_LINES = 150


@pytest.fixture(scope="module")
def sample(shared_corpus, tmp_path_factory) -> Path:
    """The first documents of every source."""
    folder = tmp_path_factory.mktemp("sample")
    for path in sorted(shared_corpus.glob("*.jsonl.zst")):
        with pa.input_stream(str(path), compression="zstd") as stream:
            lines = list(itertools.islice(io.TextIOWrapper(stream, encoding="utf-8"), NUM_LINES))
        (folder / path.name.removesuffix(".zst")).write_text("".join(lines), encoding="utf-8")
    return folder


def check(out: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(CHECK), out, "--workers", "1"], capture_output=True, text=True, check=False)


def test_every_document_of_every_source_has_sentencepieces_ids(config, sample):
    corpus = replace(config.corpus, corpus=str(sample), split_bytes=1 << 20)
    config = replace(config, corpus=corpus, train=TrainConfig(vocab_size=4000), validation=0.02)
    with LocalEngine(LocalConfig(workers=2)) as engine:
        report = build(config, engine=engine)
    assert [source.source for source in report.sources] == ["en", "hi", "mix", "other_devanagari"]
    done = check(config.out)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{4 * NUM_LINES} documents: every id equals SentencePiece's\n"

    shard = read_manifest(config.out).shards[0]
    tokens = np.memmap(Path(config.out) / f"{shard.name}.bin", np.uint16, mode="r+")
    tokens[7] ^= 1
    tokens.flush()
    done = check(config.out)
    assert done.returncode == 1 and "has its ids" in done.stdout
