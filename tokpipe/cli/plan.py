"""`tokpipe plan`: options -> a checked request -> one call -> text or JSON."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import click

from tokpipe.estimate import SHAPES, ModelShape, complete_request, llama_ffn_size, make_plan, nearest_shape, render_plan

UNITS = {"": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "MIB": 2.0**20, "GIB": 2.0**30}
COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class Amount(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3 only
    """A positive number with a unit: 80GB, 7e9, 7B."""

    def __init__(self, name: str, units: dict[str, float]) -> None:
        self.name = name
        self.units = units

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse, or fail with the units that are known."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"\s*([0-9][0-9_.]*(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z]*)\s*", str(value))
        if match is None or match[2].upper() not in self.units:
            self.fail(f"{value!r} is not a number with one of the units {', '.join(u for u in self.units if u)}", param, ctx)
        amount = float(match[1].replace("_", "")) * self.units[match[2].upper()]
        if not 0 < amount < math.inf:
            self.fail(f"{value!r} must be positive and finite", param, ctx)
        return amount


@click.command()
@click.option(
    "--params", type=Amount("count", COUNTS), help="Parameters, e.g. 7e9 or 7B; alone it takes the nearest published shape."
)
@click.option("--shape", type=click.Choice(list(SHAPES)), help="A published model's shape.")
@click.option("--layers", type=int, help="Layers of your own shape.")
@click.option("--hidden", type=int, help="Hidden size.")
@click.option("--heads", type=int, help="Attention heads.")
@click.option("--kv-heads", type=int, help="Key and value heads (default: as many as --heads).")
@click.option("--ffn", type=int, help="Width of the MLP (default: 8/3 of --hidden, rounded up to 256).")
@click.option("--vocab-size", type=int, help="Vocabulary (default: the shape's, or 32000).")
@click.option("--gpus", type=int, default=64, show_default=True, help="GPUs in all.")
@click.option("--gpu-memory", type=Amount("bytes", UNITS), default=80e9, show_default="80GB", help="Memory of one GPU.")
@click.option("--gpus-per-node", type=int, default=8, show_default=True, help="GPUs joined by NVLink.")
@click.option("--dp", type=int, help="Data-parallel replicas (default: what the GPUs leave).")
@click.option("--tp", type=int, default=1, show_default=True, help="Tensor-parallel ranks.")
@click.option("--pp", type=int, default=1, show_default=True, help="Pipeline stages.")
@click.option("--zero", type=click.IntRange(0, 3), default=1, show_default=True, help="ZeRO stage.")
@click.option(
    "--schedule",
    type=click.Choice(["gpipe", "1f1b", "interleaved"]),
    default="1f1b",
    show_default=True,
    help="Pipeline schedule.",
)
@click.option("--virtual-stages", type=int, default=1, show_default=True, help="Stages per rank (interleaved).")
@click.option("--seq-len", type=int, default=2048, show_default=True, help="Tokens per sample.")
@click.option("--micro-batch-size", type=int, default=1, show_default=True, help="Samples per micro-batch.")
@click.option("--global-batch-size", type=int, help="Samples per optimizer step (default: 2048, or what --micro-batches makes).")
@click.option("--micro-batches", type=int, help="Micro-batches per replica and step.")
@click.option(
    "--tokens",
    type=Amount("count", COUNTS),
    help="Training tokens (default: what the published model saw, else 20 per parameter).",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, in full precision (bytes, not GB).")
def plan(as_json: bool, **options: Any) -> None:
    """Memory, layout, bubble, tokens and steps of a training run, before anybody pays for one."""
    try:
        shape, notes = _shape(**{name: options.pop(name) for name in _SHAPE_OPTIONS}, params=options["params"])
        request = complete_request(
            shape,
            num_params=options.pop("params"),
            gpu_bytes=options.pop("gpu_memory"),
            num_micro_batches=options.pop("micro_batches"),
            num_tokens=options.pop("tokens"),
            notes=notes,
            **options,
        )
        answer = make_plan(request)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    click.echo(json.dumps(answer.to_dict(), indent=2) if as_json else render_plan(answer))


_SHAPE_OPTIONS = ("shape", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab_size")


def _shape(
    *,
    shape: str | None,
    layers: int | None,
    hidden: int | None,
    heads: int | None,
    kv_heads: int | None,
    ffn: int | None,
    vocab_size: int | None,
    params: float | None,
) -> tuple[ModelShape, tuple[str, ...]]:
    """The shape that the options describe, and what to tell the user about the choice.

    Raises:
        ValueError: if they describe none, or two.
    """
    own = {"--layers": layers, "--hidden": hidden, "--heads": heads}
    given = [name for name, value in own.items() if value is not None]
    if given and shape:
        raise ValueError(f"give --shape or {', '.join(given)}, not both")
    if layers is not None and hidden is not None and heads is not None:
        made = ModelShape(
            name="own shape",
            num_layers=layers,
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=heads if kv_heads is None else kv_heads,
            ffn_size=llama_ffn_size(hidden) if ffn is None else ffn,
            vocab_size=32_000 if vocab_size is None else vocab_size,
        )
        return made, ()
    if given:
        missing = [name for name, value in own.items() if value is None]
        raise ValueError(f"a shape of your own also needs {', '.join(missing)}")
    if shape is None and params is None:
        raise ValueError(f"give --params, --shape ({', '.join(SHAPES)}) or --layers --hidden --heads")
    found = SHAPES[shape] if shape else nearest_shape(params or 0.0)
    notes = () if shape else (f"--params alone: the nearest published shape, {found.name}, is used for everything but the state",)
    changed = replace(
        found,
        num_kv_heads=found.num_kv_heads if kv_heads is None else kv_heads,
        ffn_size=found.ffn_size if ffn is None else ffn,
        vocab_size=found.vocab_size if vocab_size is None else vocab_size,
    )
    return changed, notes
