"""`tokpipe verify`: one library call, a progress bar, a report."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from tokpipe.cli.engine_options import ENGINE_OPTIONS, engine_of, work_dir
from tokpipe.cli.option_groups import with_options
from tokpipe.engine.base import Counters
from tokpipe.engine.progress import open_progress
from tokpipe.partition import read_staged
from tokpipe.shards import VerifyReport, entries_of, read_manifest, verify_dataset

# Starting workers takes longer than reading so much here.
ALONE_BYTES = 200_000_000


@click.command()
@click.argument("data")
@with_options(ENGINE_OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, every problem in it.")
def verify(data: str, as_json: bool, **options: Any) -> None:
    """Re-read every byte of the dataset in DATA (a folder, or a URL such as s3://bucket/data) and check every promise.

    Sizes, hashes, indices, ids below the vocabulary, one </s> per document and at its end, files missing, swapped or too many,
    the tokenizer. Of a staged share, only the shards that it holds. Exit code 1 if anything is wrong. Nothing is written to DATA.
    """
    report = verify_with_progress(data, options)
    click.echo(json.dumps(report.as_dict(), ensure_ascii=False) if as_json else report.summary())
    report.raise_if_bad()


def verify_with_progress(data: str, options: dict[str, Any]) -> VerifyReport:
    """Verify here, or by an engine's workers; with a bar on stderr, and with the tokenizer itself loaded for its fingerprint."""
    staged = None if "://" in data else read_staged(data)
    only = None if staged is None else staged["shards"]
    num_bytes = sum(entry.bin_bytes + entry.idx_bytes for entry in entries_of(read_manifest(data), only))
    # Imported here: sentencepiece and numba take half a second, and a wrong path should not wait for them.
    from tokpipe.build.verify_task import verify_with_engine
    from tokpipe.tokenizer import Tokenizer

    def fingerprint_of(path: Path) -> str:
        return Tokenizer.load(path).fingerprint

    progress = open_progress(sys.stderr)
    if options["engine"] == "local" and (options["workers"] == 1 or num_bytes < ALONE_BYTES):
        progress.start("verify", num_bytes, 0)
        try:
            return verify_dataset(
                data,
                only=only,
                on_progress=lambda num_bytes: progress.add(Counters(text_bytes=num_bytes)),
                fingerprint_of=fingerprint_of,
            )
        finally:
            progress.finish()
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(contextlib.closing(engine_of(options)))
        shared = None if options["engine"] == "local" else work_dir(options["work_dir"])
        if shared:
            shared.mkdir(parents=True, exist_ok=True)
        results = stack.enter_context(tempfile.TemporaryDirectory(prefix="verify-", dir=shared))
        return verify_with_engine(data, engine, Path(results), progress, only=only, fingerprint_of=fingerprint_of)
