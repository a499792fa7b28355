"""What people look at while training: one line per interval, `metrics.jsonl`, and TensorBoard if asked. Rank 0 only."""

from __future__ import annotations

import json
import logging
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from tokpipe.errors import MissingExtraError, TrainerError
from tokpipe.estimate import flops_per_token, mfu, peak_flops
from tokpipe.trainer.model import ModelConfig
from tokpipe.trainer.step import StepResult

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes records; a record has `kind` ("train" or "validation"), `step`, and numbers."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Keep one record."""
        ...

    def close(self) -> None:
        """Flush."""
        ...


class JsonLines:
    """`metrics.jsonl`: one record a line. A resumed run first drops what a lost future had written."""

    def __init__(self, path: Path, *, resume_step: int) -> None:
        kept = [record for record in read_metrics(path) if record["step"] <= resume_step] if path.exists() else []
        path.parent.mkdir(parents=True, exist_ok=True)
        side = path.with_name(path.name + ".part")  # A crash meanwhile must not cost what is there.
        side.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        side.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line and flush it."""
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Records of a `metrics.jsonl`; a last line cut short by a crash is left out.

    Raises:
        TrainerError: if another line is not JSON.
    """
    records = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise TrainerError(
                    f"{path}: line {number} is not JSON: {error}. Move the file away to start a new one."
                ) from error
    return records


class TensorBoard:
    """The same numbers as TensorBoard scalars."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                "metrics.tensorboard = true needs TensorBoard: pip install 'tokpipe[tensorboard]', or set it to false"
            ) from error
        self._writer = SummaryWriter(folder)

    def write(self, record: Mapping[str, Any]) -> None:
        """One scalar per number."""
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedometer:
    """Turns tokens and seconds into tokens/s and, on a GPU whose peak is known, MFU."""

    flops_each: float
    num_gpus: int
    peak: float | None

    @staticmethod
    def of(model: ModelConfig, *, seq_len: int, world_size: int, device: torch.device) -> Speedometer:
        """For a model on `world_size` devices like this one."""
        return Speedometer(
            flops_each=flops_per_token(
                model.num_parameters, num_layers=model.num_layers, hidden_size=model.hidden_size, seq_len=seq_len
            ),
            num_gpus=world_size,
            peak=peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None,
        )

    def read(self, tokens: int, seconds: float) -> dict[str, float]:
        """`tokens_per_second` and perhaps `mfu`."""
        speed = tokens / max(seconds, 1e-9)
        numbers = {"tokens_per_second": speed}
        if self.peak is not None:
            numbers["mfu"] = mfu(speed, flops_each=self.flops_each, num_gpus=self.num_gpus, peak=self.peak)
        return numbers


def memory_bytes(device: torch.device) -> int:
    """Peak bytes PyTorch has allocated on the GPU, or this process's resident bytes on CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    return pages * resource.getpagesize()


class Metrics:
    """Gathers steps and speaks once per interval. On ranks other than 0 it only counts."""

    def __init__(
        self, *, sinks: list[Sink], speedometer: Speedometer, device: torch.device, max_steps: int, interval: int
    ) -> None:
        self._sinks = sinks
        self._speedometer = speedometer
        self._device = device
        self._max_steps = max_steps
        self._interval = interval
        self._tokens = 0
        self._seconds = 0.0
        self._wait_seconds = 0.0
        self.last: dict[str, Any] = {}

    def step_done(self, step: int, result: StepResult, *, tokens: int, lr: float, seconds: float, wait_seconds: float) -> None:
        """Count a step; at an interval's end, write and say it.

        Args:
            step: Steps done so far, this one included.
            result: Of the step.
            tokens: Of the global batch.
            lr: Learning rate it used.
            seconds: It took, waiting for data included.
            wait_seconds: Of those, waiting for data.
        """
        self._tokens += tokens
        self._seconds += seconds
        self._wait_seconds += wait_seconds
        if step % self._interval and step not in (1, self._max_steps):
            return
        record: dict[str, Any] = {"kind": "train", "step": step, "loss": result.loss, "lr": lr, "grad_norm": result.grad_norm}
        record |= self._speedometer.read(self._tokens, self._seconds)
        record |= {"data_wait": self._wait_seconds / max(self._seconds, 1e-9), "memory_bytes": memory_bytes(self._device)}
        record["time"] = time.time()
        self._tokens, self._seconds, self._wait_seconds = 0, 0.0, 0.0
        self.last = record
        self._write(record)
        if self._sinks:
            utilisation = f" | mfu {record['mfu']:.1%}" if "mfu" in record else ""
            logger.info(
                "step %*d/%d | loss %.4f | lr %.2e | grad norm %.3f | %s tokens/s%s | data wait %.0f %% | %.2f GB",
                len(str(self._max_steps)),
                step,
                self._max_steps,
                result.loss,
                lr,
                result.grad_norm,
                f"{record['tokens_per_second']:,.0f}",
                utilisation,
                100 * record["data_wait"],
                record["memory_bytes"] / 1e9,
            )

    def validated(self, step: int, losses: Mapping[str, float]) -> None:
        """Write and say validation losses; `losses` has one per source and `all`."""
        self._write({"kind": "validation", "step": step, **{f"loss/{name}": loss for name, loss in losses.items()}})
        if self._sinks:
            logger.info("step %d | validation | %s", step, " | ".join(f"{name} {loss:.4f}" for name, loss in losses.items()))

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        for sink in self._sinks:
            sink.write(record)
