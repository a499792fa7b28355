"""What must hold inside a manifest: types, ranges, and the arithmetic of docs/format.md. Each violation has its own message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tokpipe.errors import ManifestError
from tokpipe.shards.format import DTYPE_CODES, MAX_DOCUMENTS, dtype_for_vocab, idx_num_bytes, token_dtype

if TYPE_CHECKING:
    from tokpipe.shards.manifest import ShardEntry

_FIELDS: dict[str, type | tuple[type, ...]] = {
    "version": int,
    "dataset_id": str,
    "tool_version": str,
    "created": str,
    "tokenizer": dict,
    "dtype": str,
    "sources": list,
    "seed": int,
    "settings": dict,
    "rejects": dict,
    "skipped": dict,
    "shards": list,
    "checksum": str,
}
_TOKENIZER_FIELDS: dict[str, type | tuple[type, ...]] = {
    "fingerprint": str,
    "vocab_size": int,
    "eos_id": int,
    "path": str,
    "bos_id": (int, type(None)),
    "prepend_bos": bool,
}
_SHARD_TYPES = (str, str, bool, int, int, int, int, str, str)
_HASH = re.compile(r"[0-9a-f]{32}")
RESTORE = "Restore the original, or delete it and run the same build again: it is rewritten from the receipts."


def check_shape(found: Any, *, where: str, version: int) -> None:
    """Is this a manifest, and of our version?

    Raises:
        ManifestError: if not.
    """
    if not isinstance(found, dict) or "version" not in found or "shards" not in found:
        raise ManifestError(f'{where}: is not a dataset manifest: an object with "version" and "shards" is expected. {RESTORE}')
    if found["version"] != version:
        raise ManifestError(
            f"{where}: manifest version {found['version']!r}, this tokpipe reads version {version}. "
            f"It was written by tokpipe {found.get('tool_version', '(unknown)')}; use that version or a later one."
        )


def check_fields(found: dict[str, Any], *, where: str) -> None:
    """Every field there, none besides, each of its type, the tokenizer's ids inside its vocabulary.

    Raises:
        ManifestError: naming the first field that is wrong.
    """
    _check_types(found, _FIELDS, where=where)
    if not all(isinstance(source, str) for source in found["sources"]):
        raise ManifestError(f"{where}: sources is {found['sources']!r}, expected names. {RESTORE}")
    tokenizer = found["tokenizer"]
    _check_types(tokenizer, _TOKENIZER_FIELDS, where=f"{where}, tokenizer")
    if found["dtype"] not in DTYPE_CODES:
        raise ManifestError(f"{where}: dtype {found['dtype']!r}, expected one of {', '.join(DTYPE_CODES)}. {RESTORE}")
    vocab_size = tokenizer["vocab_size"]
    if not 1 <= vocab_size <= 2**31:
        raise ManifestError(f"{where}: tokenizer.vocab_size {vocab_size:,}, expected 1 to 2^31. {RESTORE}")
    if found["dtype"] != dtype_for_vocab(vocab_size):
        raise ManifestError(
            f"{where}: dtype {found['dtype']} with a vocabulary of {vocab_size:,}, "
            f"expected {dtype_for_vocab(vocab_size)}. {RESTORE}"
        )
    for name in ("eos_id", "bos_id"):
        if tokenizer[name] is not None and not 0 <= tokenizer[name] < vocab_size:
            raise ManifestError(
                f"{where}: tokenizer.{name} {tokenizer[name]:,} is not below vocab_size {vocab_size:,}. {RESTORE}"
            )
    if tokenizer["prepend_bos"] and tokenizer["bos_id"] is None:
        raise ManifestError(f"{where}: tokenizer.prepend_bos is true but tokenizer.bos_id is null. {RESTORE}")
    if not _is_inside(tokenizer["path"]):
        raise ManifestError(f"{where}: tokenizer.path {tokenizer['path']!r} points out of the dataset folder. {RESTORE}")


def check_entries(found: dict[str, Any], shards: Sequence[ShardEntry], *, where: str) -> None:
    """Every shard row: types, names, sources, and sizes that follow from its documents and tokens.

    Raises:
        ManifestError: naming the first shard that is wrong, expected against found.
    """
    dtype, sources = found["dtype"], set(found["sources"])
    itemsize = token_dtype(dtype).itemsize
    seen: set[str] = set()
    for shard in shards:
        if tuple(map(type, shard)) != _SHARD_TYPES:
            bad = next(f for f, v, t in zip(shard._fields, shard, _SHARD_TYPES, strict=True) if type(v) is not t)
            raise ManifestError(f"{where}: shard {shard.name!r}: {bad} is {getattr(shard, bad)!r}, a wrong type. {RESTORE}")
        at = f"{where}: shard {shard.name}"
        if shard.name in seen:
            raise ManifestError(f"{at}: is listed twice. {RESTORE}")
        seen.add(shard.name)
        if not _is_inside(shard.name):
            raise ManifestError(f"{at}: the name points out of the dataset folder. {RESTORE}")
        if shard.source not in sources:
            raise ManifestError(f"{at}: source {shard.source!r} is not among the manifest's sources {sorted(sources)}. {RESTORE}")
        if not 1 <= shard.num_documents <= MAX_DOCUMENTS:
            raise ManifestError(f"{at}: {shard.num_documents:,} documents, a shard has 1 to {MAX_DOCUMENTS:,}. {RESTORE}")
        if shard.num_tokens < shard.num_documents:
            raise ManifestError(
                f"{at}: {shard.num_tokens:,} tokens in {shard.num_documents:,} documents, each has at least one. {RESTORE}"
            )
        if shard.bin_bytes != itemsize * shard.num_tokens:
            raise ManifestError(
                f"{at}: bin_bytes {shard.bin_bytes:,}, but {shard.num_tokens:,} {dtype} tokens take "
                f"{itemsize * shard.num_tokens:,}. The manifest was edited. {RESTORE}"
            )
        if shard.idx_bytes != idx_num_bytes(shard.num_documents):
            raise ManifestError(
                f"{at}: idx_bytes {shard.idx_bytes:,}, but {shard.num_documents:,} documents take "
                f"{idx_num_bytes(shard.num_documents):,}. The manifest was edited. {RESTORE}"
            )
        if not (_HASH.fullmatch(shard.bin_xxh3) and _HASH.fullmatch(shard.idx_xxh3)):
            raise ManifestError(f"{at}: bin_xxh3 and idx_xxh3 must be 32 hex digits each. {RESTORE}")


def _check_types(found: dict[str, Any], fields: dict[str, type | tuple[type, ...]], *, where: str) -> None:
    if missing := sorted(set(fields) - set(found)):
        raise ManifestError(f"{where}: lacks {', '.join(missing)}. {RESTORE}")
    if unknown := sorted(set(found) - set(fields)):
        raise ManifestError(f"{where}: has fields that this version does not know: {', '.join(unknown)}. {RESTORE}")
    for name, kind in fields.items():
        value = found[name]
        # bool is an int in Python, not in a manifest.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ManifestError(f"{where}: {name} is {value!r}, a wrong type. {RESTORE}")


def _is_inside(name: str) -> bool:
    """A relative path with no way up, so that joining it to the folder stays in the folder."""
    return bool(name) and not name.startswith("/") and "\\" not in name and ".." not in name.split("/")
