"""`tokpipe train`: recipe and flags -> config -> one call -> a summary on stdout, from rank 0."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

import click


@click.command()
@click.argument("recipe", type=click.Path(dir_okay=False))
@click.option("--data", help="Dataset folder; beats the recipe's data.path.")
@click.option("--out", help="Folder of the run; beats run.out.")
@click.option("--max-steps", type=int, help="Optimizer steps in all; beats run.max_steps.")
@click.option("--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Beat any other setting of the recipe.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def train(recipe: str, overrides: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Train the reference model from RECIPE, alone or under `torchrun`; run it again to go on from the last checkpoint."""
    from tokpipe.trainer import Launch, describe, read_train_config, run_training

    launch = Launch(
        rank=int(os.environ.get("RANK", 0)),
        world_size=int(os.environ.get("WORLD_SIZE", 1)),
        local_rank=int(os.environ.get("LOCAL_RANK", 0)),
        distributed="RANK" in os.environ,
    )
    if launch.rank != 0:
        logging.getLogger("tokpipe").setLevel(logging.WARNING)  # Only rank 0 speaks, but for warnings and errors.
    places = {"data": "data.path", "out": "run.out", "max_steps": "run.max_steps"}
    given = [f"{places[name]}={json.dumps(value)}" for name, value in flags.items() if value is not None]
    config = read_train_config(recipe, overrides=(*overrides, *given), world_size=launch.world_size)
    summary = run_training(config, launch=launch)
    if launch.rank == 0:
        click.echo(json.dumps(describe(summary), indent=2) if as_json else _text(describe(summary)))


def _text(summary: dict[str, Any]) -> str:
    losses = ", ".join(f"{name} {loss:.4f}" for name, loss in summary["validation"].items()) or "none"
    loss = "none" if summary["loss"] is None else f"{summary['loss']:.4f}"
    return (
        f"steps {summary['first_step']} to {summary['last_step']}, training loss {loss}, "
        f"validation loss: {losses}\n"
        f"{summary['out']}: checkpoints, metrics.jsonl, loss.png, recipe.toml"
    )
