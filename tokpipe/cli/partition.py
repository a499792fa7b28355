"""`tokpipe partition`: which files and bytes every data-parallel rank reads, and a copy of them on a local disk."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tokpipe.cli.layout_options import order_option, parse_ranks, parse_weights, seed_option, weights_option
from tokpipe.partition import Order, plan_partition, read_staged, save_partition, stage_ranks


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--dp", required=True, type=click.IntRange(min=1), help="Data-parallel ranks.")
@click.option("--seq-len", required=True, type=click.IntRange(min=1), help="Tokens per sample.")
@click.option("--global-batch-size", required=True, type=click.IntRange(min=1), help="Samples per step over all ranks.")
@weights_option
@seed_option
@order_option
@click.option("--rank", "ranks", default="", metavar="R|R-R", help="Only these ranks, e.g. 3 or 0-7.")
@click.option("--stage", type=click.Path(path_type=Path), help="Copy the shards that --rank reads here, whole and verified.")
@click.option("--json", "as_json", is_flag=True, help="Print what partition.json, or with --stage staged.json, holds.")
def partition(
    data: Path,
    dp: int,
    seq_len: int,
    global_batch_size: int,
    weights: str,
    seed: int | None,
    order: Order | None,
    ranks: str,
    stage: Path | None,
    as_json: bool,
) -> None:
    """Lay the dataset in folder DATA out over data-parallel ranks.

    Prints, and saves as DATA/partition.json, every rank's files and byte ranges, samples per epoch, steps, the tail that is left
    out, and the mixture. With --rank and --stage the ranks' shards are copied to a local disk instead: the copy opens like the
    whole dataset for those ranks and this plan, and refuses any other.
    """
    summary = plan_partition(
        data,
        dp=dp,
        seq_len=seq_len,
        global_batch_size=global_batch_size,
        weights=parse_weights(weights),
        seed=seed or 0,
        order=order or "blocks",
    )
    chosen = parse_ranks(ranks) if ranks else list(range(dp))
    if stage is not None:
        if not ranks:
            raise click.UsageError("--stage copies what some ranks read: say which with --rank.")
        entries = stage_ranks(data, stage, summary, chosen)
        num_bytes = sum(entry.bin_bytes + entry.idx_bytes for entry in entries)
        text = f"staged {len(entries):,} shards, {num_bytes:,} bytes, verified, for rank {ranks} of {dp}: {stage}"
        click.echo(json.dumps(read_staged(stage), ensure_ascii=False) if as_json else text)
        return
    path = save_partition(data, summary)
    click.echo(json.dumps(summary.as_dict(chosen), ensure_ascii=False) if as_json else summary.text(chosen))
    click.echo(f"saved: {path}", err=True)
