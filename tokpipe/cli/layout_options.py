"""Options that say how training lays a dataset out, for every command that reads by rank."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from tokpipe.errors import PartitionError
from tokpipe.partition import PARTITION_NAME
from tokpipe.shards import open_files


def parse_weights(text: str) -> dict[str, float] | None:
    """`hi=0.5,en=0.5` as a dict; None for an empty text.

    Raises:
        PartitionError: if it does not look like that.
    """
    weights = {}
    for item in filter(None, text.split(",")):
        name, equals, share = item.partition("=")
        try:
            weights[name.strip()] = float(share)
        except ValueError as error:
            raise PartitionError(f"--weights must look like hi=0.5,en=0.5, got {item!r}") from error
        if not equals or not name.strip():
            raise PartitionError(f"--weights must look like hi=0.5,en=0.5, got {item!r}")
    return weights or None


def parse_ranks(text: str) -> list[int]:
    """`3` or `0-7` or `0,4-5` as numbers.

    Raises:
        PartitionError: if it does not look like that.
    """
    ranks: list[int] = []
    for item in text.split(","):
        first, dash, last = item.partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise PartitionError(f"--rank must be a number or a range like 0-7, got {text!r}")
        some = range(int(first), int(last if dash else first) + 1)
        if not some:
            raise PartitionError(f"--rank {item.strip()} is an empty range: write the smaller number first")
        ranks += some
    return sorted(set(ranks))


def complete_layout(data: str | os.PathLike[str], given: dict[str, Any], weights: dict[str, float] | None) -> dict[str, Any]:
    """What was given on the command line, and the rest from the dataset's `partition.json`, or else from the defaults.

    Raises:
        PartitionError: if something is missing in all of them.
    """
    files = open_files(data)
    saved: dict[str, Any] = {"dp": 1, "seed": 0, "order": "blocks", "seq_len": None, "global_batch_size": None}
    if files.size(PARTITION_NAME) is not None:
        with files.open(PARTITION_NAME) as file:
            record = json.loads(file.read())
        saved = {"dp": record["dp_world_size"], "seed": record["seed"], "order": record["order"], **record["phase"]}
        del saved["start"]
    chosen = {name: value for name, value in (given | {"weights": weights}).items() if value is not None}
    layout = {"weights": None} | saved | chosen
    missing = [f"--{name.replace('_', '-')}" for name, value in layout.items() if value is None and name != "weights"]
    if missing:
        raise PartitionError(f"{data}: has no {PARTITION_NAME}, so give {' and '.join(missing)}")
    return layout


weights_option = click.option(
    "--weights",
    default="",
    metavar="NAME=W,...",
    help="Share of each source in every global batch; by default as much as there is.",
)
# Without defaults of their own: a command may take what is not given from partition.json.
seed_option = click.option("--seed", type=int, help="Decides the order of samples, with epoch and lane; 0 unless given.")
order_option = click.option(
    "--order",
    type=click.Choice(["blocks", "sequential", "full"]),
    help="Inside a lane: permuted blocks of about 1 MiB (unless given), as it lies, or one permutation of all.",
)
