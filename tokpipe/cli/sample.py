"""`tokpipe sample`: one training batch as text, so that people see what the model sees."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tokpipe.cli.layout_options import complete_layout, order_option, parse_weights, seed_option, weights_option
from tokpipe.shards import read_manifest

MAX_STEP = 10**12
"""Beyond any training; samples are counted in 64 bits."""


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--step", default=0, show_default=True, type=click.IntRange(0, MAX_STEP), help="Global step.")
@click.option("--rank", default=0, show_default=True, type=click.IntRange(min=0), help="Data-parallel rank.")
@click.option("--dp", type=click.IntRange(min=1), help="Data-parallel ranks; as in partition.json unless given.")
@click.option("--seq-len", type=click.IntRange(min=1), help="Tokens per sample; likewise.")
@click.option("--global-batch-size", type=click.IntRange(min=1), help="Samples per step over all ranks; likewise.")
@weights_option
@seed_option
@order_option
@click.option("--held-out", is_flag=True, help="From the pass over the held-out documents.")
@click.option("--limit", default=8, show_default=True, type=click.IntRange(min=1), help="Samples to show.")
@click.option("--json", "as_json", is_flag=True, help="The samples as JSON: for each, its documents with place, ids and text.")
def sample(data: Path, step: int, rank: int, limit: int, held_out: bool, as_json: bool, weights: str, **layout: Any) -> None:
    """Show the batch that a rank reads at a step of training on the dataset in folder DATA.

    Every sample names its source, shard and place. A line marks each document that begins, and one that began earlier.
    """
    # Imported here: torch takes seconds, and a wrong path should not wait for it.
    tokenizer_path = data / read_manifest(data).tokenizer.path
    from tokpipe.dataset import TokenDataset, sample_pieces
    from tokpipe.tokenizer import Tokenizer

    layout = complete_layout(data, layout, parse_weights(weights))
    dp = layout.pop("dp")
    dataset = TokenDataset(data, dp_rank=rank, dp_world_size=dp, held_out=held_out, **layout)
    per_rank = dataset.samples_per_rank(step)
    tokenizer = Tokenizer.load(tokenizer_path)
    samples = [
        [{**asdict(piece), "ids": piece.ids.tolist(), "text": tokenizer.decode(piece.ids.tolist())} for piece in pieces]
        for pieces in sample_pieces(dataset, step, 0, min(limit, per_rank))
    ]
    heading = {"step": step, "rank": rank, "dp": dp, "seq_len": layout["seq_len"], "samples_per_rank": per_rank}
    click.echo(json.dumps({**heading, "samples": samples}, ensure_ascii=False) if as_json else as_text(heading, samples))


def as_text(heading: dict[str, int], samples: list[list[dict[str, Any]]]) -> str:
    """The samples for a person: where each comes from, and a line before every document."""
    lines = [
        f"step {heading['step']:,}, rank {heading['rank']} of {heading['dp']}: "
        f"{len(samples)} of {heading['samples_per_rank']} samples of {heading['seq_len']:,} tokens"
    ]
    for number, pieces in enumerate(samples):
        where = "only fills up the last batch"
        if pieces:
            where = f"{pieces[0]['source']}, {pieces[0]['shard']} from token {pieces[0]['start']:,}"
        lines.append(f"\n=== sample {number}: {where}")
        for piece in pieces:
            verb = "begins" if piece["starts_document"] else "goes on"
            place = f"{piece['shard']}, {len(piece['ids']):,} tokens"
            lines += [f"--- document {piece['document']:,} of {piece['source']} {verb} ({place})", piece["text"]]
    return "\n".join(lines)
