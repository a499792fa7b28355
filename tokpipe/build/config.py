"""What decides the output of a build, and what only decides how it is run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokpipe.corpus import CorpusConfig
from tokpipe.corpus.storage import is_utf8, local_path
from tokpipe.tokenizer import TrainConfig
from tokpipe.urls import refuse_credentials

# Settings that may change between two runs on one --out: none of them changes a byte of a shard.
FREE_SETTINGS = ("out", "max_rejects", "partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionConfig:
    """The layout that a build writes at its end."""

    write: bool = True
    """Whether to write one at all."""
    dp: int = 64
    """Data-parallel ranks."""
    seq_len: int = 2048
    """Tokens a sample is trained on."""
    global_batch_size: int = 2048
    """Samples a step."""
    exact: bool = False
    """Whether a corpus too small for these is an error; otherwise the largest that works is taken, with a notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildConfig:
    """Everything a build is asked for."""

    corpus: CorpusConfig
    """What to read and how."""
    out: str
    """The dataset folder."""
    tokenizer: str = ""
    """An existing `.model` file, or a folder with a tokenizer.model; empty trains one on the corpus."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """How to train; unused with `tokenizer`."""
    count_fraction: float = 0.0
    """Part of the splits whose words are counted for training; 0 is all up to 100 GB of input, then what gives about 50 GB."""
    validation: float = 0.001
    """Part of the documents that is held out, by a hash of their content."""
    max_rejects: float = 0.001
    """Part of the records that may be refused before the build fails."""
    self_check: float = 0.001
    """Part of the documents that is encoded again with plain SentencePiece."""
    piece_bytes: int = 1 << 30
    """Bytes of text after which a task publishes what it has, so that a restart goes on from there."""
    eos_id: int = -1
    """Ends each document; -1 takes the tokenizer's own `</s>`."""
    prepend_bos: bool = False
    """Whether each document begins with the tokenizer's `<s>`."""
    seed: int = 0
    """Kept in the manifest for the partition's order."""
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    """The layout written at the end."""

    def __post_init__(self) -> None:
        if not self.out:
            raise ValueError("out must name a folder or a URL, got an empty string")
        refuse_credentials(self.out)
        for name, value in (("corpus", self.corpus.corpus), ("out", self.out), ("tokenizer", self.tokenizer)):
            if value and not is_utf8(absolute(value)):
                raise ValueError(f"{name} must be a path whose name is UTF-8, got {absolute(value)!r}; rename it, or link to it")
        if Path(_resolved(self.out)).is_relative_to(_resolved(self.corpus.corpus)):
            raise ValueError(f"out ({self.out}) lies inside the corpus ({self.corpus.corpus}), which would change with it")
        for name in ("count_fraction", "max_rejects", "self_check"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if not 0 <= self.validation < 1:
            raise ValueError(f"validation must be in [0, 1), got {self.validation}")
        if self.piece_bytes < 1:
            raise ValueError(f"piece_bytes must be positive, got {self.piece_bytes}")

    def settings(self) -> dict[str, Any]:
        """The settings that decide the output, as JSON values; `from_settings` takes them back."""
        fields = dataclasses.asdict(self)
        for name in FREE_SETTINGS:
            del fields[name]
        fields["corpus"]["corpus"] = absolute(self.corpus.corpus)
        if self.tokenizer:
            fields["tokenizer"] = str(Path(self.tokenizer).expanduser().absolute())
            del fields["train"]
        settings: dict[str, Any] = json.loads(json.dumps(fields))
        return settings


def from_settings(settings: Mapping[str, Any], *, out: str, max_rejects: float) -> BuildConfig:
    """The config that `settings` came from, in another process; free settings that tasks do not need have their defaults."""
    fields = {name: value for name, value in settings.items() if name not in ("corpus", "train")}
    if "train" in settings:
        fields["train"] = TrainConfig(**_tuples(settings["train"]))
    return BuildConfig(corpus=CorpusConfig(**_tuples(settings["corpus"])), out=out, max_rejects=max_rejects, **fields)


def settings_hash(settings: Mapping[str, Any], *fingerprints: str) -> str:
    """16 hex digits that name a plan: its settings (those of training apart), its corpus, its given tokenizer."""
    named = {name: value for name, value in settings.items() if name != "train"}
    text = json.dumps([named, *fingerprints], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Settings that differ, one readable line each: `validation: was 0.001, now 0.01`."""
    lines: list[str] = []
    for name in sorted({*old, *new}):
        before, after = old.get(name, "not set"), new.get(name, "not set")
        if isinstance(before, dict) and isinstance(after, dict):
            lines += differences(before, after, f"{prefix}{name}.")
        elif before != after:
            lines.append(f"{prefix}{name}: was {json.dumps(before)}, now {json.dumps(after)}")
    return lines


def absolute(corpus: str) -> str:
    """A local path made independent of the working folder; URLs and `hf:` names as they are."""
    if "://" in corpus or corpus.startswith("hf:"):
        return corpus
    return str(Path(corpus).expanduser().absolute())


def _resolved(location: str) -> str:
    """Where a local path leads, links and `..` followed; URLs and `hf:` names as they are."""
    path = local_path(location)
    return location if path is None or path.startswith("hf:") else os.path.realpath(Path(path).expanduser())


def _tuples(value: Any) -> Any:
    """JSON lists back to tuples, everywhere inside."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {name: _tuples(item) for name, item in value.items()}
    return value
