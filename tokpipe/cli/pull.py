"""`tokpipe pull`: one library call with a progress bar, and a line."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from tokpipe.cli.layout_options import complete_layout, order_option, parse_ranks, parse_weights, seed_option, weights_option
from tokpipe.engine.base import Counters
from tokpipe.engine.progress import open_progress
from tokpipe.partition import plan_partition, pull_dataset, shards_of_ranks, stage_ranks
from tokpipe.shards import ShardEntry, read_manifest


@click.command()
@click.argument("url")
@click.option("--out", required=True, type=click.Path(file_okay=False), help="Folder on a local disk.")
@click.option("--rank", "ranks", default="", metavar="R|R-R", help="Only what these data-parallel ranks read, e.g. 3 or 0-7.")
@click.option("--dp", type=click.IntRange(min=1), help="Data-parallel ranks; as in partition.json unless given.")
@click.option("--seq-len", type=click.IntRange(min=1), help="Tokens per sample; likewise.")
@click.option("--global-batch-size", type=click.IntRange(min=1), help="Samples per step over all ranks; likewise.")
@weights_option
@seed_option
@order_option
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def pull(url: str, out: str, ranks: str, weights: str, as_json: bool, **layout: Any) -> None:
    """Copy the dataset at URL, or what some ranks read of it, to a local folder.

    URL may be s3://bucket/data, any other fsspec URL, or a folder. Every shard is verified as it arrives. Run it again to go on
    where it stopped: what is there and whole is kept. A share opens for its ranks and its layout only.
    """
    if not ranks:
        entries = read_manifest(url).shards
        _with_progress(entries, lambda on_bytes: pull_dataset(url, out, on_bytes=on_bytes))
    else:
        chosen = parse_ranks(ranks)
        summary = plan_partition(url, **complete_layout(url, layout, parse_weights(weights)))
        entries = shards_of_ranks(url, summary, chosen)
        _with_progress(entries, lambda on_bytes: stage_ranks(url, out, summary, chosen, on_bytes=on_bytes))
    result = {"out": out, "shards": len(entries), "bytes": _num_bytes(entries), "ranks": parse_ranks(ranks) if ranks else None}
    share = f", what rank {ranks} reads" if ranks else ""
    text = f"{result['shards']:,} shards, {result['bytes']:,} bytes, every one verified{share}: {out}"
    click.echo(json.dumps(result) if as_json else text)


def _with_progress(entries: tuple[ShardEntry, ...], copy: Any) -> None:
    progress = open_progress(sys.stderr)
    progress.start("pull", _num_bytes(entries), 0)
    try:
        copy(lambda num_bytes: progress.add(Counters(text_bytes=num_bytes)))
    finally:
        progress.finish()


def _num_bytes(entries: tuple[ShardEntry, ...]) -> int:
    return sum(entry.bin_bytes + entry.idx_bytes for entry in entries)
