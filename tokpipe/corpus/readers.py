"""One split -> clean batches of text, whatever the formats of its files."""

from __future__ import annotations

from collections.abc import Iterator

from tokpipe.corpus.batches import Cursor, Piece, TextBatch, merge_pieces
from tokpipe.corpus.config import CorpusConfig
from tokpipe.corpus.csv_rows import read_csv
from tokpipe.corpus.formats import ROW_FORMATS
from tokpipe.corpus.jsonl import read_json_lines
from tokpipe.corpus.rejects import RejectLog
from tokpipe.corpus.split_table import Part, Split
from tokpipe.corpus.storage import join
from tokpipe.corpus.tables import read_arrow, read_parquet
from tokpipe.corpus.text_files import read_file_document, read_text_records

BEGINNING = Cursor(0, 0)


def read_split(split: Split, config: CorpusConfig, rejects: RejectLog, *, start: Cursor = BEGINNING) -> Iterator[TextBatch]:
    """Yield the documents of one split in order, in batches of about 16 MB of text.

    Args:
        split: what to read.
        config: the settings that the split was planned with.
        rejects: gets every refused record; when a batch comes out it holds the rejects up to that batch's cursor and no more.
        start: the cursor of an earlier batch: go on behind it, with the same batches as if never stopped. Compressed files are
            decompressed up to there, but not parsed.

    Raises:
        UnreadableFileError: if a file is truncated or damaged, naming file and offset. The batches before it have come out, but
            the split has not ended: nothing of it may be published.
        MissingColumnError: if a file has no such text column.
    """
    return merge_pieces(_read_parts(split, config, start), rejects)


def _read_parts(split: Split, config: CorpusConfig, start: Cursor) -> Iterator[Piece]:
    for index in range(start.part, len(split.parts)):
        part = split.parts[index]
        position = start.position if index == start.part else 0
        yield from _read_part(join(split.root, part.path), part, index, position, config.column_path)


def _read_part(name: str, part: Part, index: int, position: int, column: tuple[str, ...]) -> Iterator[Piece]:
    """Choose the reader of a format; `position` is a byte or a row, see `ROW_FORMATS`."""
    start = position if part.format in ROW_FORMATS else max(position, part.start)
    match part.format:
        case "text":
            return read_file_document(name, part, index, start)
        case "lines" | "paragraphs":
            return read_text_records(name, part, index, start)
        case "jsonl" | "json":
            return read_json_lines(name, part, index, start, column)
        case "csv" | "tsv":
            return read_csv(name, part, index, start, column)
        case "parquet":
            return read_parquet(name, part, index, start, column)
        case "arrow":
            return read_arrow(name, part, index, start, column)
        case other:
            raise ValueError(f"{name}: unknown format {other!r}")
