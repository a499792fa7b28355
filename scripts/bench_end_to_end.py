"""From files to tokens on disk on one pinned core: tokpipe beside gigatoken, datatrove and a plain SentencePiece loop.

    python scripts/bench_end_to_end.py CORPUS [--model FOLDER] [--megabytes 60] [--repeats 5] [--json FILE]

The same documents lie as JSONL.zst and as Parquet; every tool reads them, tokenizes with the same model, ends each document and
writes the tokens to disk. Imports and the loading of tokenizers are not timed: a run over a small file goes before. tokpipe does
all that a build does: inventory, UTF-8 check, self-check, hashes, receipts, manifest. Medians of wall-clock time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
from bench_encode import batches, read_texts, trained_model

FORMATS = ("jsonl.zst", "parquet")
Run = Callable[[Path, Path], None]


def write_inputs(texts: pa.LargeStringArray, folder: Path) -> None:
    """The documents as one file of each format."""
    for name in FORMATS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    with pa.output_stream(str(folder / "jsonl.zst" / "text.jsonl.zst"), compression="zstd") as stream:
        for text in texts.to_pylist():
            stream.write(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")
    pa.parquet.write_table(
        pa.table({"text": texts}), folder / "parquet" / "text.parquet", row_group_size=2000, compression="zstd"
    )


def tokpipe(model: Path) -> Run:
    """`tokpipe tokenize`, its tasks run in this process."""
    from tokpipe.build import BuildConfig, tokenize
    from tokpipe.corpus import CorpusConfig

    class Here:
        """An engine that runs the missing tasks in this very process."""

        def run(self, spec, progress):
            tasks = spec.open()
            for index in tasks.missing():
                tasks.run(index, progress.add)

        def close(self):
            """Nothing was started."""

    return lambda source, out: tokenize(
        BuildConfig(corpus=CorpusConfig(corpus=str(source)), out=str(out), tokenizer=str(model), validation=0.0), engine=Here()
    )


def gigatoken(model: Path) -> Run:
    """gigatoken's file encoding, and its ids written as they come."""
    import awkward
    from gigatoken import JsonlFileSource, ParquetFileSource, Tokenizer

    def run(source: Path, out: Path) -> None:
        tokenizer = Tokenizer.from_sentencepiece(str(model / "tokenizer.model"))
        path = str(next(source.iterdir()))
        files = ParquetFileSource([path], "text") if path.endswith("parquet") else JsonlFileSource([path], "text")
        ids = tokenizer.encode_files(files, parallel=False)
        lengths = awkward.to_numpy(awkward.num(ids))
        flat = awkward.to_numpy(awkward.flatten(ids)).astype(np.uint16)
        ends = np.cumsum(lengths)
        np.insert(flat, ends, 2).tofile(out / "tokens.bin")
        ends.tofile(out / "tokens.idx")

    return run


def datatrove(model: Path) -> Run:
    """datatrove's DocumentTokenizer over its own readers."""
    from datatrove.pipeline.readers import JsonlReader, ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    from tokpipe.tokenizer.export import export_hugging_face

    exported = export_hugging_face(model, model)[0]

    def run(source: Path, out: Path) -> None:
        reader = ParquetReader(str(source)) if source.name == "parquet" else JsonlReader(str(source), compression="zstd")
        writer = DocumentTokenizer(str(out), str(exported), eos_token="</s>", shuffle_documents=False)
        writer.run(reader.run(None, 0, 1), 0, 1)

    return run


def sentencepiece(model: Path) -> Run:
    """The loop that one would write by hand."""
    from sentencepiece import SentencePieceProcessor

    def run(source: Path, out: Path) -> None:
        processor = SentencePieceProcessor(model_file=str(model / "tokenizer.model"))
        path = next(source.iterdir())
        with (out / "tokens.bin").open("wb") as file:
            for text in _texts(path):
                np.array([*processor.encode(text), 2], np.uint16).tofile(file)

    return run


def _texts(path: Path):
    if path.suffix == ".parquet":
        for batch in pa.parquet.ParquetFile(path).iter_batches(columns=["text"]):
            yield from batch["text"].to_pylist()
        return
    with pa.input_stream(str(path), compression="zstd") as stream:
        for line in stream.read().splitlines():
            yield json.loads(line)["text"]


TOOLS = {"sentencepiece loop": sentencepiece, "datatrove": datatrove, "gigatoken": gigatoken, "tokpipe": tokpipe}


def child(tool: str, name: str, model: Path, work: Path) -> None:
    """One timed run in a process of its own; prints wall-clock and CPU seconds."""
    run = TOOLS[tool](model)
    for inputs in ("small", "full"):
        out = work / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        start, cpu = time.perf_counter(), time.process_time()
        run(work / inputs / name, out)
        seconds = time.perf_counter() - start, time.process_time() - cpu
    print("SECONDS", *seconds)


def main() -> None:
    """Measure every tool on every format and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--model", type=Path, help="a folder with tokenizer.model and its warm units")
    parser.add_argument("--megabytes", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--child", nargs=2, metavar=("TOOL", "FORMAT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    work = Path("demo/bench").resolve()
    work.mkdir(parents=True, exist_ok=True)
    if args.child:
        child(*args.child, args.model, work)
        return
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    model = (args.model or trained_model(read_texts(args.corpus, 1e6), work / "tokenizer")).resolve()
    texts = read_texts(args.corpus, args.megabytes)
    megabytes = pa.compute.sum(pa.compute.binary_length(texts)).as_py() / 1e6
    write_inputs(texts, work / "full")
    write_inputs(next(batches(texts)).slice(0, 20), work / "small")
    rows = []
    for name in FORMATS:
        for tool in TOOLS:
            runs = [_measured(args.corpus, tool, name, model) for _ in range(args.repeats)]
            wall, cpu = (statistics.median(run[k] for run in runs) for k in (0, 1))
            rows.append(
                {
                    "tool": tool,
                    "format": name,
                    "megabytes": megabytes,
                    "mb_per_s": megabytes / wall,
                    "mb_per_cpu_s": megabytes / cpu,
                }
            )
    print(
        f"{'format':12}{'tool':22}{'MB/s':>8}{'per CPU s':>11}"
        + "".join(f"{'x ' + tool:>20}" for tool in TOOLS if tool != "tokpipe")
    )
    for row in rows:
        speeds = {other["tool"]: other["mb_per_s"] for other in rows if other["format"] == row["format"]}
        ratios = "".join(f"{row['mb_per_s'] / speed:20.2f}" for tool, speed in speeds.items() if tool != "tokpipe")
        print(f"{row['format']:12}{row['tool']:22}{row['mb_per_s']:8.1f}{row['mb_per_cpu_s']:11.1f}{ratios}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(work / "out")


def _measured(corpus: Path, tool: str, name: str, model: Path) -> tuple[float, float]:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(corpus), "--model", str(model), "--child", tool, name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("SECONDS")]
    if not lines:
        sys.exit(f"{tool} on {name} failed:\n{done.stderr[-3000:]}")
    return float(lines[-1][1]), float(lines[-1][2])


if __name__ == "__main__":
    main()
