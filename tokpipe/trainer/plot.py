"""The loss curve as a picture, drawn without a display."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def plot_losses(records: Iterable[Mapping[str, Any]], path: Path, *, reference: Mapping[str, float] | None = None) -> None:
    """Save training and validation losses over steps as PNG.

    Args:
        records: As in `metrics.jsonl`.
        path: Where the PNG goes.
        reference: Losses to draw as horizontal lines, e.g. the unigram entropy.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = list(records)
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    train = [(record["step"], record["loss"]) for record in records if record["kind"] == "train"]
    if train:
        axes.plot(*zip(*train, strict=True), label="training", linewidth=1)
    validations = [record for record in records if record["kind"] == "validation"]
    names = sorted({name for record in validations for name in record if name.startswith("loss/")})
    for name in names:
        points = [(record["step"], record[name]) for record in validations if name in record]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=f"validation, {name.removeprefix('loss/')}")
    for label, value in (reference or {}).items():
        axes.axhline(value, linestyle="--", linewidth=1, color="grey")
        axes.annotate(f"{label} {value:.2f}", (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    figure.savefig(path)
