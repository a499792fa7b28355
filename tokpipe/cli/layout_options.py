"""Options that say how training lays a dataset out, for every command that reads by rank."""

from __future__ import annotations

import click

from tokpipe.errors import PartitionError


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
        if not first.strip().isdigit() or (dash and not last.strip().isdigit()):
            raise PartitionError(f"--rank must be a number or a range like 0-7, got {text!r}")
        ranks += range(int(first), int(last if dash else first) + 1)
    return sorted(set(ranks))


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
