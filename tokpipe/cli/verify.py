"""`tokpipe verify`: one library call, a progress bar, a report."""

from __future__ import annotations

import json
import sys

import click

from tokpipe.engine.base import Counters
from tokpipe.engine.progress import open_progress
from tokpipe.shards import VerifyReport, read_manifest, verify_dataset


@click.command()
@click.argument("data")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, every problem in it.")
def verify(data: str, as_json: bool) -> None:
    """Re-read every byte of the dataset in DATA (a folder, or a URL such as s3://bucket/data) and check every promise.

    Sizes, hashes, indices, ids below the vocabulary, one </s> per document and at its end, files missing, swapped or too many,
    the tokenizer. Exit code 1 if anything is wrong.
    """
    report = verify_with_progress(data)
    click.echo(json.dumps(report.as_dict(), ensure_ascii=False) if as_json else report.summary())
    report.raise_if_bad()


def verify_with_progress(data: str) -> VerifyReport:
    """`verify_dataset` with a bar on stderr, and with the tokenizer itself loaded for its fingerprint."""
    # Imported here: sentencepiece and numba take half a second, and a wrong path should not wait for them.
    manifest = read_manifest(data)
    from tokpipe.tokenizer import Tokenizer

    progress = open_progress(sys.stderr)
    progress.start("verify", sum(entry.bin_bytes + entry.idx_bytes for entry in manifest.shards), 0)
    try:
        return verify_dataset(
            data,
            on_progress=lambda num_bytes: progress.add(Counters(text_bytes=num_bytes)),
            fingerprint_of=lambda path: Tokenizer.load(path).fingerprint,
        )
    finally:
        progress.finish()
