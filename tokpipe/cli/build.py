"""`tokpipe build`: from raw text to a dataset."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import click

from tokpipe.build import build as run_build
from tokpipe.build import estimate_build, open_store
from tokpipe.build.task_worker import build_together
from tokpipe.cli.build_options import (
    CORPUS_OPTIONS,
    COUNT_OPTIONS,
    OUTPUT_OPTIONS,
    PARTITION_OPTIONS,
    RUN_OPTIONS,
    TRAIN_OPTIONS,
    build_config,
    progress_of,
)
from tokpipe.cli.engine_options import ENGINE_OPTIONS, TASK_WORKER_OPTION, engine_of, place_of
from tokpipe.cli.option_groups import with_options
from tokpipe.engine.local import LocalConfig


@click.command()
@click.option("--corpus", required=True, help="Folder, file, URL or hf:NAME[:CONFIG[:SPLIT]] with the text.")
@click.option("--out", default="data", show_default=True, help="Folder or URL of the dataset.")
@click.option("--tokenizer", default="", help="An existing SentencePiece model; without it one is trained on the corpus.")
@with_options(CORPUS_OPTIONS, TRAIN_OPTIONS, COUNT_OPTIONS, OUTPUT_OPTIONS, PARTITION_OPTIONS)
@with_options(ENGINE_OPTIONS, TASK_WORKER_OPTION, RUN_OPTIONS)
def build(**options: Any) -> None:
    """Turn a folder of raw text into verified token shards.

    Trains a tokenizer on all of the text, encodes it into shards, and writes a partition for data-parallel training. Stop it at
    any time: the same command goes on where it was, and on a finished dataset it says so.
    """
    run(options)


def run(options: dict[str, Any]) -> None:
    """Build, or only estimate; print the result."""
    config = build_config(options)
    if options["dry_run"]:
        workers = LocalConfig(workers=options["workers"]).num_workers
        result = estimate_build(config, open_store(config.out), workers=workers)
        click.echo(json.dumps(dataclasses.asdict(result), indent=2) if options["as_json"] else result.describe())
        return
    if options.get("task_worker"):
        shared = build_together(config, place_of(options), progress_of(options))
        if shared is None:
            return
        report = shared
    else:
        with contextlib.closing(engine_of(options, config.out)) as engine:
            report = run_build(config, engine=engine, progress=progress_of(options))
    click.echo(json.dumps(report.as_dict(), indent=2) if options["as_json"] else report.describe())
