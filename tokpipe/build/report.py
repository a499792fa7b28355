"""What a build says at its end, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tokpipe.build.receipts import Receipt
from tokpipe.engine.progress import human_bytes, human_seconds
from tokpipe.shards import Manifest

REPORT = "report.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """One source's numbers."""

    source: str
    documents: int
    tokens: int
    held_out_documents: int
    held_out_tokens: int
    text_bytes: int
    """UTF-8 bytes of all its documents, held-out ones included."""

    @property
    def bytes_per_token(self) -> float:
        """Text bytes a token stands for, `</s>` included."""
        return self.text_bytes / max(1, self.tokens + self.held_out_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport:
    """What is in a dataset and how it came about."""

    out: str
    dataset_id: str
    vocab_size: int
    sources: tuple[SourceReport, ...]
    num_shards: int
    rejects: dict[str, int]
    blank: int
    ignored: tuple[str, ...]
    """Files that were not read because of their names; the first ones."""
    num_ignored: int
    checked_bytes: int
    notices: tuple[str, ...]
    already_finished: bool
    seconds: float
    """Of this run; 0 if the dataset was finished before."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def describe(self) -> str:
        """A short text: table of sources, what was left out, what to do next."""
        head = f"Dataset {self.dataset_id} in {self.out}"
        lines = [f"{head} was finished before; nothing to do." if self.already_finished else f"{head} is finished."]
        lines += ["", *self._table(), ""]
        lines.append(f"{self.num_shards:,} shards; {self.vocab_size:,} pieces in {self.out}/tokenizer.")
        if self.checked_bytes:
            lines.append(f"Checked against SentencePiece: {human_bytes(self.checked_bytes)} of text, all ids equal.")
        if self.rejects:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(self.rejects.items()))
            lines.append(f"Refused records: {sum(self.rejects.values()):,} ({reasons}); each is listed in {self.out}/rejects.")
        if self.blank:
            lines.append(f"Blank records skipped: {self.blank:,}.")
        if self.num_ignored:
            more = ", ..." if self.num_ignored > len(self.ignored) else ""
            lines.append(f"Files ignored because of their names: {self.num_ignored:,} ({', '.join(self.ignored)}{more}).")
        lines += self.notices
        if self.seconds:
            speed = sum(source.text_bytes for source in self.sources) / self.seconds
            lines.append(f"This run took {human_seconds(self.seconds)}, {human_bytes(speed)}/s of text.")
        lines.append(f"Next: tokpipe verify {self.out}; tokpipe inspect {self.out}")
        return "\n".join(lines)

    def _table(self) -> list[str]:
        rows = [("source", "documents", "tokens", "held-out documents", "held-out tokens", "text", "bytes/token")]
        for source in self.sources:
            rows.append(
                (
                    source.source,
                    f"{source.documents:,}",
                    f"{source.tokens:,}",
                    f"{source.held_out_documents:,}",
                    f"{source.held_out_tokens:,}",
                    human_bytes(source.text_bytes),
                    f"{source.bytes_per_token:.2f}",
                )
            )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def source_reports(manifest: Manifest, receipts: Sequence[Receipt], task_sources: Sequence[str]) -> tuple[SourceReport, ...]:
    """Numbers per source; `task_sources` is the source of each receipt's task."""
    reports = []
    for source in manifest.sources:
        training = [shard for shard in manifest.shards if shard.source == source and not shard.held_out]
        held_out = [shard for shard in manifest.shards if shard.source == source and shard.held_out]
        own = (receipt for receipt, name in zip(receipts, task_sources, strict=True) if name == source)
        reports.append(
            SourceReport(
                source=source,
                documents=sum(shard.num_documents for shard in training),
                tokens=sum(shard.num_tokens for shard in training),
                held_out_documents=sum(shard.num_documents for shard in held_out),
                held_out_tokens=sum(shard.num_tokens for shard in held_out),
                text_bytes=sum(receipt.text_bytes for receipt in own),
            )
        )
    return tuple(reports)
