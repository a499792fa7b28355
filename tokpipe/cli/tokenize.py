"""`tokpipe tokenize`: text to shards with an existing tokenizer."""

from __future__ import annotations

from typing import Any

import click

from tokpipe.cli.build import run
from tokpipe.cli.build_options import CORPUS_OPTIONS, OUTPUT_OPTIONS, RUN_OPTIONS
from tokpipe.cli.engine_options import ENGINE_OPTIONS, TASK_WORKER_OPTION
from tokpipe.cli.option_groups import with_options


@click.command()
@click.argument("corpus")
@click.option("--tokenizer", required=True, help="A SentencePiece .model, or a folder with a tokenizer.model.")
@click.option("--out", required=True, help="Folder or URL of the dataset.")
@with_options(CORPUS_OPTIONS, OUTPUT_OPTIONS, ENGINE_OPTIONS, TASK_WORKER_OPTION, RUN_OPTIONS)
def tokenize(**options: Any) -> None:
    """Like build, with an existing tokenizer and no partition.

    Stop it at any time: the same command goes on where it was.
    """
    run({**options, "partition": False})
