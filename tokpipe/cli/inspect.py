"""`tokpipe inspect`: what a dataset holds, or one of its documents as text, ids and pieces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tokpipe.shards import describe, read_document, read_manifest, summarize


@click.command()
@click.argument("data")
@click.option("--doc", type=click.IntRange(min=0), help="Show this document (numbered from 0 in the order of the manifest).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(data: str, doc: int | None, as_json: bool) -> None:
    """Summarise the dataset in folder DATA, or show one of its documents: text, ids and pieces."""
    if doc is None:
        manifest = read_manifest(data)
        click.echo(json.dumps(summarize(manifest), ensure_ascii=False) if as_json else describe(manifest))
    else:
        found = load_document(data, doc)
        click.echo(json.dumps(found, ensure_ascii=False) if as_json else render_document(found))


def load_document(data: str, number: int) -> dict[str, Any]:
    """One document with its text and pieces, as JSON values."""
    from tokpipe.tokenizer import Tokenizer

    manifest = read_manifest(data)
    stored = read_document(data, manifest, number)
    tokenizer = Tokenizer.load(Path(data) / manifest.tokenizer.path)
    ids: list[int] = stored.ids.tolist()
    return {
        "document": number,
        "shard": stored.shard.name,
        "index": stored.index,
        "source": stored.shard.source,
        "held_out": stored.shard.held_out,
        "num_tokens": len(ids),
        "text": tokenizer.decode(ids[int(manifest.tokenizer.prepend_bos) : -1]),
        "ids": ids,
        "pieces": [tokenizer.id_to_piece(token) for token in ids],
    }


def render_document(found: dict[str, Any]) -> str:
    """The document for a person: where it lies, its text, then every id with its piece."""
    part = "held-out" if found["held_out"] else "training"
    where = (
        f"document {found['document']:,}: {found['shard']}, document {found['index']:,} of it, source {found['source']}, {part}"
    )
    tokens = " ".join(f"{token}:{piece}" for token, piece in zip(found["ids"], found["pieces"], strict=True))
    return f"{where}\n\n{found['text']}\n\n{found['num_tokens']:,} tokens (id:piece)\n{tokens}"
