"""The word counts file: Parquet, one row per (word, source), sorted by the word's bytes and then by source.

Columns: `word` (large_string), `source` (uint16, a position in the list of source names), `count` (int64, how often the word
occurs in that source). The schema's metadata holds, as JSON under `tokpipe.word_counts`, the version, the source names and what
was counted and dropped per source. Row groups have exactly 65,536 rows, so that equal content has equal bytes however it came
together.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokpipe.errors import TrainingError
from tokpipe.tokenizer.word_order import Rows

METADATA_KEY = b"tokpipe.word_counts"
VERSION = 1
ROWS_PER_GROUP = 65_536
SCRIPTS = ("other", "latin", "devanagari")
"""Names of the scripts, by the numbers of `word_kernels.word_scripts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTotals:
    """What was counted in one source. All numbers add up when files are merged."""

    documents: int = 0
    text_bytes: int = 0
    """UTF-8 bytes of the documents, newlines and dropped words included."""
    words: int = 0
    """Occurrences of words that were kept."""
    script_bytes: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(SCRIPTS, 0))
    """Bytes of kept words by script; a word with any Devanagari in it is Devanagari, else with any Latin letter Latin."""
    tabs: int = 0
    """Tabs, which end a word and are dropped."""
    long_words: int = 0
    """Occurrences of words above `max_word_bytes`, dropped."""
    long_bytes: int = 0
    reserved_words: int = 0
    """Occurrences of words with U+2585, which SentencePiece reserves, dropped."""
    reserved_bytes: int = 0

    def __add__(self, other: SourceTotals) -> SourceTotals:
        scripts = {name: self.script_bytes[name] + other.script_bytes[name] for name in SCRIPTS}
        numbers = {name: value + getattr(other, name) for name, value in asdict(self).items() if name != "script_bytes"}
        return SourceTotals(script_bytes=scripts, **numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountsInfo:
    """What a word counts file says about itself."""

    totals: Mapping[str, SourceTotals]
    """By source name, sorted."""
    max_word_bytes: int
    num_rows: int = 0

    @property
    def sources(self) -> tuple[str, ...]:
        """Source names; a row's `source` is a position in here."""
        return tuple(self.totals)

    @property
    def text_bytes(self) -> int:
        """Bytes of all documents counted."""
        return sum(totals.text_bytes for totals in self.totals.values())

    def to_json(self) -> dict[str, Any]:
        """The metadata as plain data."""
        return {
            "version": VERSION,
            "max_word_bytes": self.max_word_bytes,
            "totals": {name: asdict(totals) for name, totals in self.totals.items()},
        }


@dataclass(frozen=True, slots=True)
class CountsBlock:
    """Some rows, in order: `keys[starts[r] : starts[r + 1]]` is the word of row r. Not to be changed."""

    keys: NDArray[np.uint8]
    starts: NDArray[np.int64]
    sources: NDArray[np.uint16]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def rows(self) -> Rows:
        """The four arrays, as kernels take them."""
        return self.keys, self.starts, self.sources, self.counts

    def slice(self, start: int, stop: int) -> CountsBlock:
        """Rows `start` to `stop` as views."""
        return CountsBlock(self.keys, self.starts[start : stop + 1], self.sources[start:stop], self.counts[start:stop])

    def words(self) -> pa.LargeStringArray:
        """The words as an Arrow column; shares the memory."""
        buffers = [None, pa.py_buffer(np.ascontiguousarray(self.starts)), pa.py_buffer(self.keys)]
        return pa.LargeStringArray.from_buffers(len(self), buffers[1], buffers[2])


class CountsWriter:
    """Writes a counts file under a side name and renames it when the block ends without an error.

    Example:
        with CountsWriter(path, info) as writer:
            writer.write(block)
    """

    def __init__(self, path: str | os.PathLike[str], info: CountsInfo):
        self.path = Path(path)
        metadata = {METADATA_KEY: json.dumps(info.to_json(), sort_keys=True, ensure_ascii=False).encode()}
        columns = [("word", pa.large_string()), ("source", pa.uint16()), ("count", pa.int64())]
        self.schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns], metadata=metadata)
        self.side = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.pending: list[pa.Table] = []
        self.num_pending = 0
        self.num_rows = 0
        self.writer: pq.ParquetWriter | None = None

    def __enter__(self) -> CountsWriter:
        self.writer = pq.ParquetWriter(
            self.side,
            self.schema,
            compression="zstd",
            use_dictionary=False,
            # Sorted words share their beginnings: front coding stores only where each differs from the one before.
            column_encoding={"word": "DELTA_BYTE_ARRAY", "source": "PLAIN", "count": "DELTA_BINARY_PACKED"},
            write_statistics=False,
        )
        return self

    def write(self, block: CountsBlock) -> None:
        """Append rows; they must sort after those before, which is the caller's duty."""
        arrays = [block.words(), pa.array(block.sources), pa.array(block.counts)]
        self.pending.append(pa.table(arrays, schema=self.schema))
        self.num_pending += len(block)
        if self.num_pending >= ROWS_PER_GROUP:
            self._flush(everything=False)

    def _flush(self, *, everything: bool) -> None:
        assert self.writer is not None
        table = pa.concat_tables(self.pending)
        start = 0
        while table.num_rows - start >= ROWS_PER_GROUP or (everything and start < table.num_rows):
            # In one chunk: a border between chunks would be a border between pages, and move with the inputs.
            group = table.slice(start, ROWS_PER_GROUP).combine_chunks()
            self.writer.write_table(group, row_group_size=ROWS_PER_GROUP)
            start += ROWS_PER_GROUP
        self.num_rows += min(start, table.num_rows)
        # A copy, so that a short rest does not hold on to the memory of a large block.
        rest = table.slice(min(start, table.num_rows))
        self.pending = [rest.take(pa.array(np.arange(rest.num_rows)))] if rest.num_rows else []
        self.num_pending = rest.num_rows

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self.writer is not None
        if kind is None and self.pending:
            self._flush(everything=True)
        self.writer.close()
        if kind is not None:
            self.side.unlink()
            return
        with self.side.open("rb") as file:
            os.fsync(file.fileno())
        self.side.replace(self.path)


def _open(path: str | os.PathLike[str]) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path, memory_map=False)
    except (pa.ArrowInvalid, OSError) as error:
        raise TrainingError(f"{path}: not a word counts file ({error}). Make one with `tokpipe tokenizer count`.") from error
    if METADATA_KEY not in (file.schema_arrow.metadata or {}):
        raise TrainingError(f"{path}: a Parquet file, but not a word counts file. Make one with `tokpipe tokenizer count`.")
    return file


def _info(file: pq.ParquetFile, path: str | os.PathLike[str]) -> CountsInfo:
    data = json.loads(file.schema_arrow.metadata[METADATA_KEY])
    if data["version"] != VERSION:
        raise TrainingError(
            f"{path}: word counts of version {data['version']}, and this tokpipe reads version {VERSION}. Count again."
        )
    totals = {name: SourceTotals(**values) for name, values in data["totals"].items()}
    return CountsInfo(totals=totals, max_word_bytes=data["max_word_bytes"], num_rows=file.metadata.num_rows)


def read_counts_info(path: str | os.PathLike[str]) -> CountsInfo:
    """What the file says about itself; reads only its footer.

    Raises:
        TrainingError: if the file is missing, no word counts file, or one of another version.
    """
    with _open(path) as file:
        return _info(file, path)


def iter_counts(path: str | os.PathLike[str]) -> Iterator[CountsBlock]:
    """The file's rows in order, at most 65,536 at a time, each block with memory of its own.

    Raises:
        TrainingError: if the file is missing, no word counts file, or one of another version.
    """
    with _open(path) as file:
        _info(file, path)
        for batch in file.iter_batches(batch_size=ROWS_PER_GROUP):
            words = batch.column("word")
            starts = np.frombuffer(words.buffers()[1], np.int64)[words.offset : words.offset + len(words) + 1]
            keys = np.frombuffer(words.buffers()[2], np.uint8)[starts[0] : starts[-1]]
            columns = [batch.column(name).to_numpy().copy() for name in ("source", "count")]
            yield CountsBlock(keys.copy(), starts - starts[0], columns[0], columns[1])


def merged_info(infos: list[CountsInfo]) -> CountsInfo:
    """The sum of what several files say, sources sorted by name.

    Raises:
        TrainingError: if their `max_word_bytes` differ.
    """
    limits = {info.max_word_bytes for info in infos}
    if len(limits) > 1:
        raise TrainingError(f"word counts made with different --max-word-bytes cannot be merged: {sorted(limits)}. Count again.")
    totals: dict[str, SourceTotals] = {}
    for name in sorted({name for info in infos for name in info.totals}):
        totals[name] = sum((info.totals[name] for info in infos if name in info.totals), SourceTotals())
    return replace(infos[0], totals=totals, num_rows=0)
