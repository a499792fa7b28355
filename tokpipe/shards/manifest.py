"""`dataset.json`: what a finished dataset consists of. Written last, whole or not at all; its fields are in docs/format.md.

Reading it checks its version, its types, the arithmetic that ties tokens and documents to file sizes, the dataset id and a
checksum of its own text, so a manifest that was edited or mixed up does not open. It touches no other file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from tokpipe.errors import ManifestError
from tokpipe.shards.durable import write_durably
from tokpipe.shards.folder import open_files, read_small
from tokpipe.shards.format import TokenDtype
from tokpipe.shards.manifest_checks import RESTORE, check_entries, check_fields, check_shape

MANIFEST_NAME = "dataset.json"
MANIFEST_VERSION = 1
_CHECKSUM_MARK = b',\n"checksum": '


class ShardEntry(NamedTuple):
    """One shard, as the manifest lists it. A tuple: a dataset has thousands, and opening it makes them all."""

    name: str
    """Path of the pair inside the dataset folder, without `.bin` and `.idx`: `shards/hi-00003-000`."""
    source: str
    held_out: bool
    num_tokens: int
    num_documents: int
    bin_bytes: int
    idx_bytes: int
    bin_xxh3: str
    """xxh3-128 of the `.bin`, 32 hex digits."""
    idx_xxh3: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerEntry:
    """The tokenizer whose ids the shards hold."""

    fingerprint: str
    """Hash of what decides the ids; opaque here."""
    vocab_size: int
    eos_id: int
    """Ends every document and stands nowhere else."""
    path: str = "tokenizer/tokenizer.model"
    """Of the model, inside the dataset folder."""
    bos_id: int | None = None
    prepend_bos: bool = False
    """Whether every document begins with `bos_id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A dataset: its tokenizer and its shards, in the dataset's order."""

    version: int = MANIFEST_VERSION
    dataset_id: str
    tool_version: str
    created: str
    """UTC, ISO 8601."""
    tokenizer: TokenizerEntry
    dtype: TokenDtype
    sources: tuple[str, ...]
    shards: tuple[ShardEntry, ...]
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    """The resolved settings of the build, as JSON values."""
    rejects: dict[str, int] = field(default_factory=dict)
    """Records refused, by reason code."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Blank records, by reason code."""


def dataset_id(fingerprint: str, shards: Iterable[ShardEntry]) -> str:
    """Name a dataset by its content: 32 hex digits over the tokenizer's fingerprint and, in order, every shard's source,
    held-out flag and file hashes. Neither names, folders nor times enter, so equal input gives an equal id anywhere.
    """
    digest = hashlib.sha256(f"tokpipe dataset 1\0{fingerprint}\n".encode())
    for shard in shards:
        part = "held-out" if shard.held_out else "training"
        digest.update(f"{shard.source}\0{part}\0{shard.bin_xxh3}\0{shard.idx_xxh3}\n".encode())
    return digest.hexdigest()[:32]


def write_manifest(folder: str | os.PathLike[str], manifest: Manifest) -> Path:
    """Write `dataset.json` durably and atomically; returns its path.

    Equal manifests give equal bytes. What `read_manifest` would refuse is refused here, before anything is written.

    Raises:
        ManifestError: if the manifest contradicts itself.
    """
    path = Path(folder) / MANIFEST_NAME
    text = _to_json(manifest)
    _parse(text, where=str(path))
    write_durably(path, text)
    return path


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read and check `dataset.json` of a dataset folder or URL. Opens no other file: thousands of shards take milliseconds.

    Raises:
        ManifestError: if it is missing, of another version, incomplete, or contradicts itself; the message says where.
    """
    files = open_files(folder)
    where = f"{files}/{MANIFEST_NAME}"
    try:
        raw = read_small(files, MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ManifestError(_why_missing(str(files))) from error
    except OSError as error:
        raise ManifestError(f"{where}: cannot be read: {error}. Check the path and its permissions.") from error
    return _parse(raw, where=where)


def _why_missing(folder: str) -> str:
    if "://" not in folder and not Path(folder).is_dir():
        return f"{folder}: there is no such folder, expected a dataset (a folder with {MANIFEST_NAME}). Check the path."
    if (Path(folder) / "build").is_dir():
        return (
            f"{folder}: the build is not finished: {MANIFEST_NAME} is written last and is not there. "
            "Run the same command again; it goes on where it stopped."
        )
    return f"{folder}: no {MANIFEST_NAME} here, so this is no dataset. Give what `tokpipe build --out` was given."


def _to_json(manifest: Manifest) -> bytes:
    """Canonical text: fixed order of fields, one shard a line, then a checksum of everything before it."""
    fields: dict[str, Any] = {name: getattr(manifest, name) for name in Manifest.__dataclass_fields__ if name != "shards"}
    fields["tokenizer"] = asdict(manifest.tokenizer)
    try:
        # Sorted inside, so that equal settings give equal bytes in whatever order they were put together.
        texts = {name: json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True) for name, value in fields.items()}
        texts["shards"] = "[\n" + ",\n".join(json.dumps(row._asdict(), ensure_ascii=False) for row in manifest.shards) + "\n]"
        body = ("{\n" + ",\n".join(f'"{name}": {text}' for name, text in texts.items())).encode()
    except (TypeError, ValueError) as error:
        raise ManifestError(f"the manifest cannot be written as JSON: {error}. Settings must be plain JSON values.") from error
    return body + _CHECKSUM_MARK + f'"{xxhash.xxh3_128_hexdigest(body)}"\n}}\n'.encode()


def _parse(raw: bytes, *, where: str) -> Manifest:
    """The manifest, with every promise kept that can be checked from its text alone."""
    try:
        found = json.loads(raw)
    except ValueError as error:
        raise ManifestError(
            f"{where}: is not whole JSON ({error}). It is written in one piece, so it was damaged or edited later. {RESTORE}"
        ) from error
    check_shape(found, where=where, version=MANIFEST_VERSION)
    check_fields(found, where=where)
    try:
        shards = tuple([ShardEntry(**row) for row in found["shards"]])
    except TypeError as error:
        raise ManifestError(
            f'{where}: a row of "shards" has other fields than {", ".join(ShardEntry._fields)}: {error}'
        ) from error
    check_entries(found, shards, where=where)
    expected = dataset_id(found["tokenizer"]["fingerprint"], shards)
    if found["dataset_id"] != expected:
        raise ManifestError(
            f"{where}: says dataset id {found['dataset_id']}, but its tokenizer fingerprint and its shards' sources, order and "
            f"hashes give {expected}. The manifest was edited or mixed with another one. {RESTORE}"
        )
    body, _, _ = raw.rpartition(_CHECKSUM_MARK)
    checksum = xxhash.xxh3_128_hexdigest(body)
    if found["checksum"] != checksum:
        raise ManifestError(
            f"{where}: was changed after it was written: it says its text has checksum {found['checksum']}, and it has "
            f"{checksum}. Only tokpipe may write this file. {RESTORE}"
        )
    del found["checksum"]
    found |= {"tokenizer": TokenizerEntry(**found["tokenizer"]), "sources": tuple(found["sources"]), "shards": shards}
    return Manifest(**found)
