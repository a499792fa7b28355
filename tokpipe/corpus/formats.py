"""What a file is, from its name and its first bytes, and which source its name says it belongs to."""

from __future__ import annotations

import fnmatch
import re
from typing import NamedTuple

COMPRESSION_SUFFIXES = {".gz": "gz", ".zst": "zst", ".bz2": "bz2", ".xz": "xz"}
FORMAT_SUFFIXES = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
TEXT_FORMATS = {"file": "text", "line": "lines", "blank-line": "paragraphs"}
"""`text_documents` -> the format of a `.txt` file in the inventory."""
RANGE_FORMATS = frozenset({"jsonl", "json", "lines", "paragraphs"})
"""Formats whose records end at a newline, so that a plain file may be cut into byte ranges."""
ROW_FORMATS = frozenset({"csv", "tsv", "parquet", "arrow"})
"""Formats whose positions are rows; all others count bytes."""

FILE_DOCUMENT_LIMIT_BYTES = 1 << 30
"""The largest `.txt` file that is taken as one document."""

# Only these shard numbers are taken off a name: `hi-00017-of-01000`, `hi_00017`; `wiki-2024` keeps its year.
_SHARD_OF = re.compile(r"(?:^|[-_.])\d+[-_]of[-_]\d+$")
_SHARD_NUMBER = re.compile(r"(?:^|[-_.])\d{5,}$")
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17rE8P\x90")


class FileKind(NamedTuple):
    """A format and a compression (`""` for plain), as the inventory stores them."""

    format: str
    compression: str


def kind_of_name(name: str, *, text_documents: str = "file") -> FileKind | None:
    """Return what a file name promises, or `None` if its extension is not one that can be read.

    Parquet and Arrow compress inside and need random access, so `x.parquet.gz` is not a known name.
    """
    stem, compression = _strip_suffix(name.lower(), COMPRESSION_SUFFIXES)
    _, kind = _strip_suffix(stem, FORMAT_SUFFIXES)
    if not kind or (compression and kind in ("parquet", "arrow")):
        return None
    return FileKind(TEXT_FORMATS[text_documents] if kind == "text" else kind, compression)


def _strip_suffix(name: str, suffixes: dict[str, str]) -> tuple[str, str]:
    """Return (name without the suffix, what the suffix means), or (name, "")."""
    dot = name.rfind(".")
    meaning = suffixes.get(name[dot:].lower(), "") if dot >= 0 else ""
    return (name[:dot], meaning) if meaning else (name, "")


def source_of_path(path: str, overrides: tuple[tuple[str, str], ...] = ()) -> str:
    """Return the source of a file, from its path relative to the corpus.

    The first matching override wins; else the first folder; else the file's name without its extensions and shard number.

    Example:
        `hi/a.txt`, `hi.jsonl.zst` and `hi-00017-of-01000.parquet` are all `hi`; `00001.txt` is `main`.
    """
    for name, glob in overrides:
        if fnmatch.fnmatchcase(path, glob):
            return name
    folder, slash, _ = path.partition("/")
    if slash:
        return folder
    stem, _ = _strip_suffix(path, COMPRESSION_SUFFIXES)
    stem, _ = _strip_suffix(stem, FORMAT_SUFFIXES)
    shorter = _SHARD_OF.sub("", stem)
    if shorter == stem:
        shorter = _SHARD_NUMBER.sub("", stem)
    return shorter or "main"


def compression_of_magic(head: bytes) -> str:
    """Return the compression that the first bytes of a file (10 or more, unless it is shorter) show, or `""`."""
    if head[:2] == b"\x1f\x8b":
        return "gz"
    # The second form is a skippable frame, which may come first.
    if head[:4] == b"\x28\xb5\x2f\xfd" or (len(head) >= 4 and 0x50 <= head[0] <= 0x5F and head[1:4] == b"\x2a\x4d\x18"):
        return "zst"
    if head[:3] == b"BZh" and head[3:4].isdigit() and head[4:10] in _BZIP2_BLOCKS:
        return "bz2"
    if head[:6] == b"\xfd7zXZ\x00":
        return "xz"
    return ""


def too_large_for_one_document(name: str, num_bytes: int) -> str:
    """Return the message for a `.txt` file that is more than one document can be."""
    return (
        f"{name}: {num_bytes:,} bytes or more are too many for one document (at most {FILE_DOCUMENT_LIMIT_BYTES:,}). Choose "
        "`--text-documents line` or `--text-documents blank-line`, or split the file."
    )
