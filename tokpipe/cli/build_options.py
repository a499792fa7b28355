"""The options that `build` and `tokenize` share, and how they become configs."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from typing import Any

import click

from tokpipe.build import BuildConfig, PartitionConfig
from tokpipe.corpus import CorpusConfig
from tokpipe.engine.base import ProgressSink
from tokpipe.engine.progress import NoProgress, open_progress
from tokpipe.tokenizer import TrainConfig

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def size(text: str) -> int:
    """Bytes, with a unit if one likes: `1073741824`, `1GiB`, `500MB`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if not found or found[2] not in UNITS:
        raise click.BadParameter(f"{text!r} is no size; write e.g. 1073741824, 1GiB or 500MB")
    return round(float(found[1]) * UNITS[found[2]])


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, equals, rest = text.partition("=")
    if not (name and equals and rest):
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, rest


def shares(text: str) -> tuple[tuple[str, float], ...]:
    """NAME=SHARE,..."""
    pairs = []
    for item in filter(None, text.split(",")):
        name, _, share = item.strip().partition("=")
        try:
            pairs.append((name, float(share)))
        except ValueError as error:
            raise click.BadParameter(f"{item!r} is not NAME=SHARE; give hi=0.5,en=0.5") from error
    return tuple(pairs)


CORPUS_OPTIONS = [
    click.option("--text-column", default="text", show_default=True, help="Column or key of the text; dots lead into structs."),
    click.option(
        "--text-documents",
        type=click.Choice(["file", "line", "blank-line"]),
        default="file",
        show_default=True,
        help="What one document of a .txt file is.",
    ),
    click.option("--source", "sources", multiple=True, type=pair, metavar="NAME=GLOB", help="Name a source by its files."),
    click.option("--split-bytes", type=size, default="1GiB", show_default=True, help="Text that one task reads, about."),
]
OUTPUT_OPTIONS = [
    click.option("--validation", type=float, default=0.001, show_default=True, help="Part of the documents to hold out."),
    click.option("--max-rejects", type=float, default=0.001, show_default=True, help="Part of the records that may be refused."),
    click.option("--piece-bytes", type=size, default="1GiB", show_default=True, help="Text after which a task publishes."),
    click.option("--eos-id", type=int, default=-1, help="Id that ends each document, for a tokenizer without </s>."),
    click.option("--prepend-bos", is_flag=True, help="Begin each document with <s>."),
    click.option("--seed", type=int, default=0, show_default=True, help="Of the partition's order."),
]
RUN_OPTIONS = [
    click.option("--dry-run", is_flag=True, help="Only say what would be read, made and needed."),
    click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout."),
]
TRAIN_OPTIONS = [
    click.option("--vocab-size", type=click.IntRange(min=1), default=32_000, show_default=True, help="Pieces of the vocabulary."),
    click.option(
        "--normalization",
        type=click.Choice(["hindi", "identity"]),
        default="hindi",
        show_default=True,
        help="hindi: precomposed nukta letters become base and nukta; identity: nothing changes.",
    ),
    click.option(
        "--merge-punctuation", is_flag=True, help="Pieces may join letters and punctuation: fewer tokens, slower encoding."
    ),
    click.option(
        "--language-weights",
        type=shares,
        default="",
        metavar="NAME=SHARE,...",
        help="Share of the bytes of text, for every source.",
    ),
    click.option(
        "--language-temperature",
        type=click.FloatRange(min=0),
        default=0.0,
        help="Shares of sources follow bytes ** (1 / T); 1 leaves text as it is. Default: Devanagari and Latin in equal bytes.",
    ),
    click.option(
        "--max-words", type=click.IntRange(min=1), default=2_000_000, show_default=True, help="Most frequent words to train on."
    ),
    click.option(
        "--character-coverage",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.99998,
        show_default=True,
        help="Share of the text's characters that get a piece; the others are spelled in bytes.",
    ),
]
COUNT_OPTIONS = [
    click.option("--count-fraction", type=float, default=0.0, show_default="all, about 50 GB of more", help="Splits to count."),
]
PARTITION_OPTIONS = [
    click.option("--dp", type=int, help="Data-parallel ranks of the partition.  [default: 64, or what works]"),
    click.option("--seq-len", type=int, help="Tokens a sample is trained on.  [default: 2048, or what works]"),
    click.option("--global-batch-size", type=int, help="Samples a step.  [default: 2048, or what works]"),
]


def build_config(options: dict[str, Any]) -> BuildConfig:
    """Options to a config.

    Raises:
        click.UsageError: for a value that a config refuses.
    """
    try:
        return BuildConfig(
            corpus=corpus_config(options),
            out=options["out"],
            tokenizer=options["tokenizer"],
            train=train_config(options) if "vocab_size" in options else TrainConfig(),
            count_fraction=options.get("count_fraction", 0.0),
            validation=options["validation"],
            max_rejects=options["max_rejects"],
            piece_bytes=options["piece_bytes"],
            eos_id=options["eos_id"],
            prepend_bos=options["prepend_bos"],
            seed=options["seed"],
            partition=_partition_config(options),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def corpus_config(options: dict[str, Any]) -> CorpusConfig:
    """What `--corpus` and `CORPUS_OPTIONS` say."""
    return CorpusConfig(**{one.name: options[one.name] for one in fields(CorpusConfig)})


def train_config(options: dict[str, Any]) -> TrainConfig:
    """What `TRAIN_OPTIONS` say."""
    return TrainConfig(**{one.name: options[one.name] for one in fields(TrainConfig)})


def _partition_config(options: dict[str, Any]) -> PartitionConfig:
    given = {name: options[name] for name in ("dp", "seq_len", "global_batch_size") if options.get(name) is not None}
    return PartitionConfig(write=options.get("partition", True), exact=bool(given), **given)


def progress_of(options: dict[str, Any]) -> ProgressSink:
    """A bar or lines on stderr; nothing for a dry run."""
    return NoProgress() if options["dry_run"] else open_progress(sys.stderr)
