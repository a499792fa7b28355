"""`tokpipe export`: options -> one call -> a line."""

from __future__ import annotations

import dataclasses
import json
from typing import Literal

import click


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False))
@click.argument("out", type=click.Path(file_okay=False))
@click.option("--data", type=click.Path(file_okay=False), help="Dataset whose tokenizer goes along (default: as trained on).")
@click.option("--dtype", type=click.Choice(["bf16", "fp32"]), default="bf16", show_default=True, help="Of the weights.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def export(run: str, out: str, data: str | None, dtype: Literal["bf16", "fp32"], as_json: bool) -> None:
    """Write the latest checkpoint of RUN (or one checkpoint's folder) to OUT, for Hugging Face transformers."""
    from tokpipe.trainer import export_checkpoint

    summary = export_checkpoint(run, out, data=data, dtype=dtype)
    text = f"{summary.out}: {summary.num_params:,} parameters after {summary.step:,} steps, {dtype}, {summary.num_files} file(s)"
    click.echo(json.dumps(dataclasses.asdict(summary), indent=2) if as_json else text)
