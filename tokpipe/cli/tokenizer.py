"""`tokpipe tokenizer`: count words, train on the counts, use, report on and export a tokenizer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from tokpipe.cli.build_options import CORPUS_OPTIONS, TRAIN_OPTIONS, corpus_config, train_config
from tokpipe.cli.corpus_text import corpus_options, counted_texts, iter_texts, one_part
from tokpipe.cli.option_groups import with_options
from tokpipe.corpus import CorpusConfig
from tokpipe.tokenizer import CountsInfo, Tokenizer, merge_counts, train_tokenizer
from tokpipe.tokenizer.encoders import open_encoder
from tokpipe.tokenizer.export import export_hugging_face
from tokpipe.tokenizer.report import format_report, report_tokenizers

T = TypeVar("T")

PATH = click.Path(path_type=Path)
OUT_FILE = click.Path(path_type=Path, dir_okay=False)
OUT_FOLDER = click.Path(path_type=Path, file_okay=False)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
held_out_option = click.option(
    "--held-out",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    help="Part of the documents, by a hash of their content, that is left out (the rule of build's --validation).",
)


@click.group()
def tokenizer() -> None:
    """Count words, train on the counts, use, report on and export a tokenizer."""


def _checked(kind: Callable[..., T], **options: Any) -> T:
    """Build a config; what it refuses is wrong usage."""
    try:
        return kind(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _counts_summary(info: CountsInfo) -> dict[str, Any]:
    return {"rows": info.num_rows, **info.to_json()}


def _describe_counts(summary: dict[str, Any], out: Path) -> str:
    lines = [f"{out}: {summary['rows']:,} rows of word and source"]
    for name, totals in summary["totals"].items():
        scripts = ", ".join(f"{script} {size:,}" for script, size in totals["script_bytes"].items())
        dropped = (
            f"dropped: {totals['long_words']:,} too long, {totals['reserved_words']:,} with U+2585; {totals['tabs']:,} tabs cut"
        )
        lines.append(f"  {name}: {totals['documents']:,} documents, {totals['text_bytes']:,} bytes, {totals['words']:,} words")
        lines.append(f"    bytes by script: {scripts}; {dropped}")
    return "\n".join(lines)


def _echo(result: dict[str, Any], text: str, *, as_json: bool) -> None:
    click.echo(json.dumps(result, ensure_ascii=False) if as_json else text)


@tokenizer.command()
@corpus_options
@held_out_option
@click.option(
    "--part",
    type=one_part,
    metavar="I/N",
    default="0/1",
    show_default=True,
    help="Count every N-th split, from I on (for job arrays).",
)
@click.option("--out", type=OUT_FILE, required=True, help="The counts file to write.")
@json_option
def count(held_out: float, part: tuple[int, int], out: Path, as_json: bool, **corpus: Any) -> None:
    """Count the words of a corpus into a file that can be merged and trained on."""
    with counted_texts(_checked(CorpusConfig, **corpus), held_out=held_out, part=part, beside=out) as counts:
        summary = _counts_summary(merge_counts(counts, out))
    _echo(summary, _describe_counts(summary, out), as_json=as_json)


@tokenizer.command("merge-counts")
@click.argument("counts", type=PATH, nargs=-1, required=True)
@click.option("--out", type=OUT_FILE, required=True, help="The counts file to write.")
@json_option
def merge_counts_command(counts: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Merge counts files; order and grouping do not change a byte of the result."""
    summary = _counts_summary(merge_counts(counts, out))
    _echo(summary, _describe_counts(summary, out), as_json=as_json)


@tokenizer.command()
@click.option("--counts", type=PATH, multiple=True, help="A counts file, from `count`, `merge-counts` or a build; repeatable.")
@click.option("--corpus", help="Or the text itself, counted first: a folder, file, fsspec URL, or hf:NAME[:CONFIG[:SPLIT]].")
@with_options(CORPUS_OPTIONS, [held_out_option])
@click.option("--out", type=OUT_FOLDER, required=True, help="The folder for tokenizer.model and card.json.")
@with_options(TRAIN_OPTIONS)
@json_option
def train(counts: tuple[Path, ...], corpus: str | None, held_out: float, out: Path, as_json: bool, **options: Any) -> None:
    """Train a SentencePiece BPE model from a counts file, or from a corpus whose words it counts first."""
    config = _checked(train_config, options=options)
    if bool(counts) == bool(corpus):
        raise click.UsageError("give --counts for words that were counted before, or --corpus for the text: one of the two")
    if counts and held_out:
        raise click.UsageError("--held-out chooses documents of --corpus; what --counts holds was chosen when it was counted")
    if corpus is None:
        card = train_tokenizer(counts, config, out)
    else:
        texts = _checked(corpus_config, options={**options, "corpus": corpus})
        with counted_texts(texts, held_out=held_out, part=(0, 1), beside=out) as counted:
            card = train_tokenizer(counted, config, out)
    text = (
        f"{out}: {card['vocab_size']:,} pieces from {card['words']:,} of {card['distinct_words']:,} distinct words, "
        f"{card['covered_share']:.3%} of the text"
    )
    _echo(card, text, as_json=as_json)


@tokenizer.command()
@click.argument("model", type=PATH)
@click.argument("text", required=False)
@click.option("--pieces", is_flag=True, help="Print pieces instead of ids.")
@json_option
def encode(model: Path, text: str | None, pieces: bool, as_json: bool) -> None:
    """Encode TEXT, or standard input as one document, with MODEL (a .model file or its folder)."""
    loaded = Tokenizer.load(model)
    ids = loaded.encode(_read_text() if text is None else _checked_text(text))
    names = [loaded.id_to_piece(number) for number in ids]
    _echo({"ids": ids, "pieces": names}, " ".join(names if pieces else map(str, ids)), as_json=as_json)


def _read_text() -> str:
    """Standard input, UTF-8 whatever the locale says; CRLF and CR become LF as in a corpus."""
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise click.ClickException(f"standard input is not UTF-8: {error}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _checked_text(text: str) -> str:
    """An argument; bytes that are not the locale's arrive in it as lone surrogates."""
    try:
        return os.fsencode(text).decode()
    except UnicodeError as error:
        raise click.BadParameter(f"not UTF-8 ({error})", param_hint="TEXT") from error


@tokenizer.command()
@click.argument("model", type=PATH)
@click.argument("ids", type=int, nargs=-1)
@json_option
def decode(model: Path, ids: tuple[int, ...], as_json: bool) -> None:
    """Decode IDS, or ids on standard input, with MODEL (a .model file or its folder)."""
    loaded = Tokenizer.load(model)
    numbers = list(ids) or _read_ids()
    wrong = [number for number in numbers if not 0 <= number < loaded.vocab_size]
    if wrong:
        raise click.BadParameter(f"{wrong[0]} is not an id: the model has 0 to {loaded.vocab_size - 1:,}", param_hint="IDS")
    text = loaded.decode(numbers)
    _echo({"text": text}, text, as_json=as_json)


def _read_ids() -> list[int]:
    try:
        return [int(word) for word in sys.stdin.read().split()]
    except ValueError as error:
        raise click.BadParameter(f"standard input must hold ids between spaces ({error})", param_hint="IDS") from error


@tokenizer.command()
@click.argument("model")
@corpus_options
@click.option(
    "--held-out",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    help="Read only this part of the documents: what `count --held-out` left out. 0 reads all.",
)
@click.option("--compare", multiple=True, help="Another .model, a tokenizer.json, or tiktoken:NAME; repeatable.")
@json_option
def report(model: str, held_out: float, compare: tuple[str, ...], as_json: bool, **corpus: Any) -> None:
    """Say what MODEL costs on a corpus: tokens per word, bytes per token, fallback, per source and script."""
    texts = iter_texts(_checked(CorpusConfig, **corpus), held_out=held_out, keep_held_out=held_out > 0)
    reports = report_tokenizers([open_encoder(name) for name in (model, *compare)], texts)
    _echo({"tokenizers": [one.to_json() for one in reports]}, format_report(reports), as_json=as_json)


@tokenizer.command()
@click.argument("model", type=PATH)
@click.option("--out", type=OUT_FOLDER, required=True, help="The folder for tokenizer.json and tokenizer_config.json.")
@json_option
def export(model: Path, out: Path, as_json: bool) -> None:
    """Export MODEL to Hugging Face: ids equal SentencePiece's with encode_special_tokens (split_special_tokens) on."""
    paths = [str(path) for path in export_hugging_face(model, out)]
    _echo({"files": paths}, "\n".join(paths), as_json=as_json)
