"""What a buyer of a tokenizer asks: how many tokens a word costs, per source and per script, beside other tokenizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokpipe.tokenizer.counts_file import SCRIPTS
from tokpipe.tokenizer.encoders import Encoder
from tokpipe.tokenizer.hashing import column_bytes
from tokpipe.tokenizer.normalization import required_characters
from tokpipe.tokenizer.word_kernels import word_scripts

NUM_SHOWN = 10
"""Longest and rarest pieces listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStats:
    """What some text costs with one tokenizer. Adds up."""

    documents: int = 0
    text_bytes: int = 0
    characters: int = 0
    words: int = 0
    """Runs of characters between white space (Unicode's, as `str.split` has it)."""
    tokens: int = 0
    byte_tokens: int = 0
    """Tokens that are single bytes or parts of a character."""
    line_tokens: int = 0
    """Those of `byte_tokens` that are a newline or a tab, which many vocabularies spell as bytes on purpose."""
    unknown_tokens: int = 0

    def __add__(self, other: TextStats) -> TextStats:
        return TextStats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def rates(self) -> dict[str, float]:
        """The ratios people compare; 0 where there is no text."""
        tokens, words = max(self.tokens, 1), max(self.words, 1)
        return {
            "tokens_per_word": self.tokens / words,
            "bytes_per_token": self.text_bytes / tokens,
            "characters_per_token": self.characters / tokens,
            "byte_rate": self.byte_tokens / tokens,
            "byte_rate_without_lines": (self.byte_tokens - self.line_tokens) / tokens,
            "unknown_rate": self.unknown_tokens / tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerReport:
    """One tokenizer on one body of text."""

    name: str
    vocab_size: int
    by_source: Mapping[str, TextStats]
    by_script: Mapping[str, TextStats]
    """The words of one script, joined by single spaces; a word with any Devanagari in it is Devanagari, else any Latin Latin."""
    vocabulary: Mapping[str, int]
    """Pieces by script; `special` and `bytes` apart."""
    longest: tuple[str, ...]
    rarest: tuple[str, ...]
    """The pieces used least in this text, the last learned first."""
    never_used: int
    """Pieces (bytes and special ones apart) that this text does not use at all."""
    missing_characters: tuple[str, ...]
    """Devanagari letters, signs and digits (and the joiners, the rupee sign) that are no piece of their own."""

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the ratios worked out."""
        data = asdict(self)
        for group in ("by_source", "by_script"):
            data[group] = {name: asdict(stats) | stats.rates() for name, stats in getattr(self, group).items()}
        return data


class _Tally:
    """Sums for one tokenizer while the text goes by."""

    def __init__(self, encoder: Encoder):
        self.encoder = encoder
        self.uses = np.zeros(len(encoder.pieces), np.int64)
        self.by_source: dict[str, TextStats] = {}
        self.by_script = dict.fromkeys(SCRIPTS, TextStats())
        lines = encoder.encode(pa.array(["\n", "\t"], pa.large_string()))
        self.is_line = np.zeros(len(encoder.pieces), np.bool_)
        self.is_line[lines] = encoder.is_byte[lines]

    def measure(self, texts: pa.LargeStringArray, size: TextStats) -> tuple[TextStats, NDArray[np.int64]]:
        """Encode texts of a known size."""
        ids = self.encoder.encode(texts)
        counts = np.bincount(ids, minlength=len(self.uses))
        unknown = int(counts[self.encoder.unk_id]) if self.encoder.unk_id >= 0 else 0
        tokens = TextStats(
            tokens=len(ids),
            byte_tokens=int(counts[self.encoder.is_byte].sum()),
            line_tokens=int(counts[self.is_line].sum()),
            unknown_tokens=unknown,
        )
        return size + tokens, counts

    def result(self) -> TokenizerReport:
        pieces = self.encoder.pieces
        text_ids = [number for number, piece in enumerate(pieces) if piece]
        rarest = sorted(text_ids, key=lambda number: (self.uses[number], -number))
        longest = sorted(text_ids, key=lambda number: (-len(pieces[number] or ""), number))
        known = {piece for piece in pieces if piece}
        return TokenizerReport(
            name=self.encoder.name,
            vocab_size=len(pieces),
            by_source=dict(sorted(self.by_source.items())),
            by_script={name: stats for name, stats in self.by_script.items() if stats.words},
            vocabulary=_vocabulary(self.encoder),
            longest=tuple(pieces[number] or "" for number in longest[:NUM_SHOWN]),
            rarest=tuple(pieces[number] or "" for number in rarest[:NUM_SHOWN]),
            never_used=sum(1 for number in text_ids if not self.uses[number]),
            missing_characters=tuple(char for char in required_characters("hindi") if char not in known),
        )


def _scripts(texts: Sequence[str]) -> NDArray[np.uint8]:
    data, starts = column_bytes(pa.array(texts, pa.large_string()))
    return np.asarray(word_scripts(data, starts))


def _vocabulary(encoder: Encoder) -> dict[str, int]:
    texts = [piece for piece in encoder.pieces if piece is not None]
    num_bytes = int(encoder.is_byte.sum())
    counts = np.bincount(_scripts(texts), minlength=len(SCRIPTS))
    by_script = {name: int(count) for name, count in zip(SCRIPTS, counts, strict=True)}
    return by_script | {"bytes": num_bytes, "special": len(encoder.pieces) - len(texts) - num_bytes}


def _size(texts: Sequence[str], num_words: int) -> TextStats:
    return TextStats(
        documents=len(texts),
        text_bytes=sum(len(text.encode()) for text in texts),
        characters=sum(map(len, texts)),
        words=num_words,
    )


def report_tokenizers(encoders: Sequence[Encoder], batches: Iterable[tuple[str, pa.LargeStringArray]]) -> list[TokenizerReport]:
    """Run every tokenizer over (source, texts) batches, read once.

    Raises:
        ValueError: if a column holds nulls or is not a `large_string` array.
    """
    tallies = [_Tally(encoder) for encoder in encoders]
    for source, texts in batches:
        documents = texts.to_pylist()
        words = [document.split() for document in documents]
        flat = [word for document in words for word in document]
        size = _size(documents, len(flat))
        scripts = _scripts(flat)
        of_script = []
        for number, name in enumerate(SCRIPTS):
            chosen = [flat[w] for w in np.flatnonzero(scripts == number)]
            joined = " ".join(chosen)
            of_script.append((name, pa.array([joined], pa.large_string()), _size([joined], len(chosen))))
        for tally in tallies:
            stats, counts = tally.measure(texts, size)
            tally.by_source[source] = tally.by_source.get(source, TextStats()) + stats
            tally.uses += counts
            for name, column, script_size in of_script:
                if script_size.words:
                    tally.by_script[name] += tally.measure(column, script_size)[0]
    return [tally.result() for tally in tallies]


COLUMNS = (
    ("tokens/word", "tokens_per_word", "{:.3f}"),
    ("bytes/token", "bytes_per_token", "{:.3f}"),
    ("chars/token", "characters_per_token", "{:.3f}"),
    ("bytes", "byte_rate", "{:.3%}"),
    ("bytes*", "byte_rate_without_lines", "{:.3%}"),
    ("unknown", "unknown_rate", "{:.3%}"),
)


def format_report(reports: Sequence[TokenizerReport]) -> str:
    """The reports as text: one table of costs for all, then each vocabulary."""
    rows = [("text", "tokenizer", "words", *(title for title, _, _ in COLUMNS))]
    groups = {(kind, name): None for report in reports for kind in ("by_source", "by_script") for name in getattr(report, kind)}
    for kind, name in groups:
        for report in reports:
            stats = getattr(report, kind)[name]
            rates = stats.rates()
            label = f"{'source' if kind == 'by_source' else 'script'} {name}"
            rows.append((label, report.name, f"{stats.words:,}", *(form.format(rates[key]) for _, key, form in COLUMNS)))
    lines = [*_align(rows), "bytes: tokens that are single bytes or parts of a character; bytes*: newline and tab aside"]
    for report in reports:
        shares = ", ".join(f"{name} {count:,} ({count / report.vocab_size:.1%})" for name, count in report.vocabulary.items())
        missing = " ".join(f"U+{ord(char):04X}" for char in report.missing_characters)
        lines += [
            "",
            f"{report.name}: {report.vocab_size:,} pieces: {shares}",
            f"  not used by this text: {report.never_used:,}",
            f"  Devanagari characters that are no piece: {missing or 'none'}",
            f"  longest: {' '.join(map(repr, report.longest))}",
            f"  rarest: {' '.join(map(repr, report.rarest))}",
        ]
    return "\n".join(lines)


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
