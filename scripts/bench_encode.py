"""Encoding speed on one pinned core: tokpipe beside its peers, same text, same model, ids compared with SentencePiece.

    python scripts/bench_encode.py CORPUS [--model FOLDER] [--megabytes 100] [--repeats 5] [--json FILE]

CORPUS is a folder of `*.jsonl.zst` with a `text` column. Without --model, the default tokenizer is trained on it once and kept in
demo/bench. Speeds are medians of CPU time, which on one core is the time itself. "later" is a second pass over the same text by
the same object, "warm start" the first pass with the frequent units of training at hand. Slow peers see a fifth of the text.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.json

from tokpipe.tokenizer import Tokenizer, TrainConfig, WordCounter, document_hashes, train_tokenizer

BATCH_BYTES = 16 << 20
Encode = Callable[[list[pa.LargeStringArray]], list[Any]]


@dataclass
class Peer:
    """One tool: how to make a fresh encoder, and what it was measured to do."""

    name: str
    make: Callable[[], Encode]
    slow: bool = False
    passes: tuple[str, ...] = ("first pass", "later pass")
    seconds: dict[str, list[float]] = field(default_factory=dict)
    megabytes: float = 0.0
    differing: int | None = None


def read_texts(corpus: Path, megabytes: float) -> pa.LargeStringArray:
    """Documents of all files, chosen by their content, about as many bytes as asked for."""
    columns = []
    for path in sorted(corpus.glob("*.jsonl.zst")):
        with pa.input_stream(str(path), compression="zstd") as stream:
            options = pa.json.ReadOptions(block_size=64 << 20)
            columns.append(pa.json.read_json(pa.BufferReader(stream.read()), options)["text"].cast(pa.large_string()))
    if not columns:
        sys.exit(f"{corpus}: no *.jsonl.zst in it")
    texts = pa.chunked_array([chunk for column in columns for chunk in column.chunks]).combine_chunks()
    share = min(1.0, megabytes * 1e6 / texts.nbytes)
    # A stride through all files: every batch is a mixture of them.
    chosen = np.flatnonzero(document_hashes(texts) < np.uint64(min(2**64 - 1, int(share * 2**64))))
    return texts.take(pa.array(np.random.default_rng(0).permutation(chosen)))


def batches(texts: pa.LargeStringArray) -> Iterator[pa.LargeStringArray]:
    """The texts in columns of about 16 MB, as the build hands them over."""
    ends = np.cumsum(pa.compute.binary_length(texts).to_numpy())
    row = 0
    while row < len(texts):
        base = ends[row - 1] if row else 0
        stop = max(row + 1, int(np.searchsorted(ends, base + BATCH_BYTES)))
        yield pa.concat_arrays([texts.slice(row, stop - row)])
        row = stop


def trained_model(texts: pa.LargeStringArray, folder: Path) -> Path:
    """A tokenizer with its warm units, trained on the texts unless it is there already: the default settings but for the
    normalization, since not every peer reads a model with rules of its own."""
    if not (folder / "units.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with WordCounter("bench") as counter:
            for batch in batches(texts):
                counter.add(batch)
            counter.write(folder / "words.counts")
        train_tokenizer(folder / "words.counts", TrainConfig(normalization="identity"), folder)
        Tokenizer.load(folder).build_warm_units(folder / "words.counts", folder)
    return folder


def tokpipe_encoder(path: Path) -> Encode:
    """A fresh tokenizer; compiling is a thing of the first run on a machine, so it is done before."""
    Tokenizer.load(path).encode_batch(pa.array(["to compile"], pa.large_string()))
    tokenizer = Tokenizer.load(path)
    return lambda columns: [tokenizer.encode_batch(column) for column in columns]


def listed(encode_all: Callable[[list[str]], Any]) -> Encode:
    """A peer that takes lists of strings; making them is not timed (see `measure`)."""
    return lambda columns: [encode_all(column) for column in columns]


def peers(folder: Path, work: Path) -> list[Peer]:
    """All tools; those that are not installed are named and left out."""
    model = folder / "tokenizer.model"

    def sentencepiece() -> Encode:
        from sentencepiece import SentencePieceProcessor

        processor = SentencePieceProcessor(model_file=str(model))
        return listed(lambda texts: processor.encode(texts, num_threads=1))

    def hugging_face() -> Encode:
        from tokenizers import Tokenizer as HuggingFace

        from tokpipe.tokenizer.export import export_hugging_face

        tokenizer = HuggingFace.from_file(str(export_hugging_face(model, work)[0]))
        tokenizer.encode_special_tokens = True
        return listed(lambda texts: [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)])

    def kitoken() -> Encode:
        from kitoken import Kitoken

        tokenizer = Kitoken.from_sentencepiece_file(str(model))
        return listed(lambda texts: tokenizer.encode_all(texts, False))

    def gigatoken() -> Encode:
        from gigatoken import Tokenizer as Gigatoken

        tokenizer = Gigatoken.from_sentencepiece(str(model))
        return listed(lambda texts: tokenizer.encode_batch(texts, parallel=False))

    cold = work / "cold.model"
    cold.write_bytes(model.read_bytes())
    found = [
        Peer("sentencepiece", sentencepiece, slow=True, passes=("first pass",)),
        Peer("HF tokenizers", hugging_face, slow=True, passes=("first pass",)),
        Peer("kitoken", kitoken),
        Peer("gigatoken", gigatoken),
        Peer("tokpipe", lambda: tokpipe_encoder(cold)),
        Peer("tokpipe, warm start", lambda: tokpipe_encoder(folder), passes=("first pass",)),
    ]
    present = []
    for peer in found:
        try:
            peer.make()
            present.append(peer)
        except ImportError as error:
            print(f"{peer.name}: left out ({error})", file=sys.stderr)
    return present


def measure(peer: Peer, columns: list[pa.LargeStringArray], repeats: int) -> list[list[int]]:
    """Time a peer; returns its ids of every document."""
    if peer.slow:
        columns = [column.slice(0, max(1, len(column) // 5)) for column in columns]
    peer.megabytes = sum(pa.compute.sum(pa.compute.binary_length(column)).as_py() for column in columns) / 1e6
    inputs: list[Any] = columns if peer.name.startswith("tokpipe") else [column.to_pylist() for column in columns]
    result: list[Any] = []
    for _ in range(repeats):
        encode = peer.make()
        for which in peer.passes:
            start = time.process_time()
            result = encode(inputs)
            peer.seconds.setdefault(which, []).append(time.process_time() - start)
    return [ids for batch in result for ids in as_lists(batch)]


def as_lists(batch: Any) -> list[list[int]]:
    """One batch of a peer's ids as lists."""
    if isinstance(batch, tuple):
        ids, offsets = batch
        return [part.tolist() for part in np.split(ids, offsets[1:-1])]
    return list(batch) if isinstance(batch, list) else batch.to_list()


def compare(peer: Peer, ids: list[list[int]], columns: list[pa.LargeStringArray], reference: Any) -> None:
    """Count the documents that a peer encodes differently from SentencePiece."""
    texts = [t for c in columns for t in c.slice(0, max(1, len(c) // 5) if peer.slow else len(c)).to_pylist()]
    peer.differing = sum(reference.encode(text) != found for text, found in zip(texts, ids, strict=True))


def _work(folder: Path, columns: list[pa.LargeStringArray], core: int, barrier: Any, seconds: Any) -> None:
    """One worker on a core of its own: its time for a second pass, taken while the others run too."""
    os.sched_setaffinity(0, {core})
    encode = tokpipe_encoder(folder)
    encode(columns)
    barrier.wait()
    start = time.perf_counter()
    for _ in range(3):
        encode(columns)
    seconds.put(time.perf_counter() - start)


def scaling(folder: Path, columns: list[pa.LargeStringArray], cores: list[int]) -> float:
    """How many times more text two workers encode in a second than one does."""
    context = multiprocessing.get_context("fork")
    slowest = []
    for count in (1, 2):
        barrier, seconds = context.Barrier(count), context.SimpleQueue()
        workers = [context.Process(target=_work, args=(folder, columns, core, barrier, seconds)) for core in cores[:count]]
        for worker in workers:
            worker.start()
        slowest.append(max(seconds.get() for _ in workers))
        for worker in workers:
            worker.join()
    return 2 * slowest[0] / slowest[1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--model", type=Path, help="a folder with tokenizer.model and its warm units")
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    # Before any tool starts its pool of threads.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    work = Path("demo/bench")
    work.mkdir(parents=True, exist_ok=True)
    folder = args.model or trained_model(read_texts(args.corpus, 1e6), work / "tokenizer")
    columns = list(batches(read_texts(args.corpus, args.megabytes)))

    from sentencepiece import SentencePieceProcessor

    reference = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    rows: list[dict[str, Any]] = []
    for peer in peers(folder, work):
        ids = measure(peer, columns, args.repeats)
        compare(peer, ids, columns, reference)
        for which, seconds in peer.seconds.items():
            speed = peer.megabytes / statistics.median(seconds)
            rows.append({"tool": peer.name, "pass": which, "mb_per_s": speed, "megabytes": peer.megabytes, "seconds": seconds,
                         "documents": len(ids), "documents_differing": peer.differing})  # fmt: skip
    speeds = {(row["tool"], row["pass"]): row["mb_per_s"] for row in rows}
    print(f"{'tool':22}{'pass':12}{'MB/s':>8}{'x sentencepiece':>17}{'x gigatoken':>13}  documents that differ")
    for row in rows:
        slow, quick = speeds.get(("sentencepiece", "first pass")), speeds.get(("gigatoken", row["pass"]))
        row["x_sentencepiece"], row["x_gigatoken"] = (row["mb_per_s"] / s if s else None for s in (slow, quick))
        ratios = "".join(f"{r:>{w}.2f}" if r else " " * w for r, w in ((row["x_sentencepiece"], 17), (row["x_gigatoken"], 13)))
        differing = f"{row['documents_differing']:,} of {row['documents']:,}"
        print(f"{row['tool']:22}{row['pass']:12}{row['mb_per_s']:8.1f}{ratios}  {differing}")
    if len(cores) > 1:
        ratio = statistics.median(scaling(folder, columns, cores) for _ in range(args.repeats))
        print(f"two workers encode {ratio:.2f} times as much a second as one")
        rows.append({"tool": "tokpipe, two workers", "x_one_worker": ratio})
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
