"""A small corpus in several formats, a tokenizer trained on it, and an engine that runs tasks in this process."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tokpipe.build import BuildConfig, PartitionConfig
from tokpipe.corpus import CorpusConfig
from tokpipe.engine.progress import NoProgress
from tokpipe.tokenizer import TrainConfig, WordCounter, train_tokenizer

NUM_DOCUMENTS = 400


class InlineEngine:
    """Runs the missing tasks one after the other, here: tests may replace parts of tokpipe and see exceptions as they are."""

    def __init__(self):
        self.ran: list[tuple[str, int]] = []

    def run(self, spec, progress=None) -> None:
        tasks = spec.open()
        progress = progress or NoProgress()
        for index in tasks.missing():
            self.ran.append((spec.stage, index))
            tasks.run(index, progress.add)

    def close(self) -> None:
        pass


@pytest.fixture
def inline() -> InlineEngine:
    return InlineEngine()


def write_jsonl(path: Path, texts, *, opener=open) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with opener(path, "wt", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)


@pytest.fixture(scope="session")
def documents() -> dict[str, list[str]]:
    """source -> its documents, in order."""
    rng = random.Random(7)
    return {source: [_text(rng, source) for _ in range(NUM_DOCUMENTS)] for source in ("en", "hi", "mix")}


def _text(rng: random.Random, source: str) -> str:
    words = {
        "en": "river stone morning letter garden silver window market seven under the and of a with".split(),
        "hi": "नदी पत्थर सुबह चिट्ठी बगीचा चाँदी खिड़की बाज़ार सात नीचे और का एक के साथ".split(),
    }
    chosen = words["en"] + words["hi"] if source == "mix" else words[source]
    ends = ["", "", "", ",", "।", ".", "\n", str(rng.randrange(1000))]
    return " ".join(rng.choice(chosen) + rng.choice(ends) for _ in range(rng.randrange(3, 60)))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory, documents) -> Path:
    """Three sources: a folder of two JSONL files, one gzip file, and one plain file."""
    folder = tmp_path_factory.mktemp("corpus")
    half = NUM_DOCUMENTS // 2
    write_jsonl(folder / "en" / "a.jsonl", documents["en"][:half])
    write_jsonl(folder / "en" / "b.jsonl", documents["en"][half:])
    write_jsonl(folder / "hi.jsonl.gz", documents["hi"], opener=gzip.open)
    write_jsonl(folder / "mix.jsonl", documents["mix"])
    (folder / "notes.pdf").write_bytes(b"not text")
    return folder


TRAIN = TrainConfig(vocab_size=560)


@pytest.fixture(scope="session")
def model(tmp_path_factory, documents) -> Path:
    """A tokenizer's folder."""
    folder = tmp_path_factory.mktemp("model")
    with WordCounter("all") as counter:
        for texts in documents.values():
            counter.add(pa.array(texts, pa.large_string()))
        counter.write(folder / "counts")
    train_tokenizer(folder / "counts", TRAIN, folder / "tokenizer")
    return folder / "tokenizer"


@pytest.fixture
def config(corpus, tmp_path) -> BuildConfig:
    """Trains; splits of 20 kB; a twentieth held out."""
    return BuildConfig(
        corpus=CorpusConfig(corpus=str(corpus), split_bytes=20_000),
        out=str(tmp_path / "data"),
        train=TRAIN,
        validation=0.05,
        self_check=0.1,
        partition=PartitionConfig(dp=2, seq_len=32, global_batch_size=4),
    )


@pytest.fixture
def given(config, model) -> BuildConfig:
    """The same with an existing tokenizer."""
    return replace(config, tokenizer=str(model))


def read_shard(prefix: Path, dtype=np.uint16) -> list[list[int]]:
    """The documents of a shard, read without tokpipe."""
    raw = prefix.with_name(prefix.name + ".idx").read_bytes()
    count = int(np.frombuffer(raw, "<u8", 1, 18)[0])
    lengths = np.frombuffer(raw, "<i4", count, 34)
    tokens = np.fromfile(prefix.with_name(prefix.name + ".bin"), dtype)
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]


@pytest.fixture
def shard_reader():
    return read_shard


def tree(out: str | Path) -> dict[str, bytes]:
    """Every file that is the dataset: shards, tokenizer, rejects, receipts."""
    root = Path(out)
    found = {}
    for folder in ("shards", "tokenizer", "rejects", "build/receipts"):
        found |= {str(path.relative_to(root)): path.read_bytes() for path in (root / folder).rglob("*") if path.is_file()}
    return found


@pytest.fixture
def files_of():
    return tree
