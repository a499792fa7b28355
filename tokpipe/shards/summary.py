"""What a dataset holds, from its manifest alone, and one document by its number."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tokpipe.errors import ManifestError
from tokpipe.shards.manifest import Manifest, ShardEntry
from tokpipe.shards.reader import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTotals:
    """Sums over one source's training shards or its held-out shards."""

    source: str
    held_out: bool
    num_shards: int
    num_documents: int
    num_tokens: int
    num_bytes: int
    """Of the `.bin` and `.idx` files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDocument:
    """One document as it lies in a shard."""

    number: int
    """In the order of the dataset: training and held-out shards as the manifest lists them."""
    shard: ShardEntry
    index: int
    """In the shard."""
    ids: NDArray[Any]
    """(num_tokens,) view, `</s>` included."""


def source_totals(manifest: Manifest) -> list[SourceTotals]:
    """Totals per source, training before held-out, in the manifest's order of sources; what holds nothing is left out."""
    groups: dict[tuple[str, bool], list[ShardEntry]] = {
        (source, held_out): [] for source in manifest.sources for held_out in (False, True)
    }
    for entry in manifest.shards:
        groups[entry.source, entry.held_out].append(entry)
    return [
        SourceTotals(
            source=source,
            held_out=held_out,
            num_shards=len(entries),
            num_documents=sum(entry.num_documents for entry in entries),
            num_tokens=sum(entry.num_tokens for entry in entries),
            num_bytes=sum(entry.bin_bytes + entry.idx_bytes for entry in entries),
        )
        for (source, held_out), entries in groups.items()
        if entries
    ]


def summarize(manifest: Manifest) -> dict[str, Any]:
    """The dataset in a few JSON values: all of the manifest but its list of shards, with totals instead."""
    totals = source_totals(manifest)
    return {
        "dataset_id": manifest.dataset_id,
        "tool_version": manifest.tool_version,
        "created": manifest.created,
        "tokenizer": asdict(manifest.tokenizer),
        "dtype": manifest.dtype,
        "seed": manifest.seed,
        "num_shards": len(manifest.shards),
        "num_documents": sum(total.num_documents for total in totals),
        "num_tokens": sum(total.num_tokens for total in totals),
        "num_bytes": sum(total.num_bytes for total in totals),
        "sources": [asdict(total) for total in totals],
        "rejects": manifest.rejects,
        "skipped": manifest.skipped,
        "settings": manifest.settings,
    }


def describe(manifest: Manifest) -> str:
    """The summary as text: a table of sources and what was refused."""
    tokenizer, totals = manifest.tokenizer, source_totals(manifest)
    num_tokens = sum(total.num_tokens for total in totals)
    rows: list[tuple[str, ...]] = [("source", "part", "shards", "documents", "tokens", "share", "bytes")]
    for total in totals:
        rows.append(_row(total.source, "held-out" if total.held_out else "training", total, num_tokens))
    for held_out, name in ((False, "training"), (True, "held-out")):
        part = [total for total in totals if total.held_out == held_out]
        if len(part) > 1:
            rows.append(_row("(all)", name, _add(part), num_tokens))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        f"dataset {manifest.dataset_id}, written by tokpipe {manifest.tool_version} on {manifest.created}",
        f"tokenizer of {tokenizer.vocab_size:,} pieces, fingerprint {tokenizer.fingerprint}, </s> is {tokenizer.eos_id}, "
        f"ids as {manifest.dtype}",
    ]
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join(left + right))
    lines += [f"{name}: {_counts(counts)}" for name, counts in (("rejected", manifest.rejects), ("skipped", manifest.skipped))]
    return "\n".join(lines)


def read_document(folder: str | os.PathLike[str], manifest: Manifest, number: int) -> StoredDocument:
    """One document by its number in the dataset.

    Raises:
        ManifestError: if the dataset has no such document, or is not on this machine.
        MissingShardError, ShardFormatError: if its shard cannot be opened.
    """
    if "://" in os.fspath(folder):
        raise ManifestError(
            f"{os.fspath(folder)}: documents are read from local files. Copy the dataset with `tokpipe pull` first."
        )
    index = number
    for entry in manifest.shards:
        if 0 <= index < entry.num_documents:
            shard = Shard.open(Path(folder) / entry.name, expect=entry)
            return StoredDocument(number=number, shard=entry, index=index, ids=shard.document(index))
        index -= entry.num_documents
    count = sum(entry.num_documents for entry in manifest.shards)
    raise ManifestError(f"document {number:,}: the dataset has {count:,} documents, numbered from 0. Give a smaller number.")


def _row(source: str, part: str, total: SourceTotals, num_tokens: int) -> tuple[str, ...]:
    counts = (f"{total.num_shards:,}", f"{total.num_documents:,}", f"{total.num_tokens:,}")
    return (source, part, *counts, f"{total.num_tokens / num_tokens:.2%}", f"{total.num_bytes:,}")


def _add(totals: list[SourceTotals]) -> SourceTotals:
    return SourceTotals(
        source="",
        held_out=totals[0].held_out,
        num_shards=sum(total.num_shards for total in totals),
        num_documents=sum(total.num_documents for total in totals),
        num_tokens=sum(total.num_tokens for total in totals),
        num_bytes=sum(total.num_bytes for total in totals),
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items())) or "none"
