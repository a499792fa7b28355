"""CSV and TSV through Arrow's streaming reader: quoted newlines, a header line, positions as rows below it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv

from tokpipe.corpus.batches import BATCH_BYTES, Cursor, Piece
from tokpipe.corpus.compression import TextStream
from tokpipe.corpus.rejects import Reject
from tokpipe.corpus.split_table import Part
from tokpipe.corpus.storage import unreadable
from tokpipe.corpus.text_files import refuse_utf16
from tokpipe.errors import MissingColumnError, UnreadableFileError

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_DETAIL_CHARACTERS = 80
_HEAD_BYTES = 1 << 16


def read_csv(name: str, part: Part, part_index: int, start: int, column: tuple[str, ...]) -> Iterator[Piece]:
    """Yield the text column of a CSV or TSV file, from row `start` on (0 is the row below the header).

    Raises:
        UnreadableFileError: if the file is damaged, or a record is longer than a block of 16 MB.
        MissingColumnError: if the header has no such column.
    """
    with TextStream(name) as stream:
        head = stream.read(_HEAD_BYTES)
        if not head.strip():
            return
        refuse_utf16(name, head)
        if len(head) < _HEAD_BYTES and not (b"\n" in head or b"\r" in head):
            head += b"\n"  # Arrow takes a header line for one only if something ends it
        skipped = _SkippedRows()
        try:
            reader = _open(_Rejoined(head, stream), part.format, ".".join(column), skipped)
            yield from _pieces(reader, stream, part, part_index, start, skipped)
        except pa.ArrowKeyError as error:
            header = head.partition(b"\n")[0].decode("utf-8", "replace").strip()
            raise MissingColumnError(
                f"{name}: no column {'.'.join(column)!r}; the header is {header!r}. Choose a column with --text-column."
            ) from error
        except UnreadableFileError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise UnreadableFileError(unreadable(name, part.format.upper(), error)) from error


class _SkippedRows:
    """Rows that Arrow found to have too few or too many fields."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str]] = []

    def __call__(self, row: Any) -> str:
        text = str(row.text)[:_DETAIL_CHARACTERS]
        # Arrow counts from 1 and counts the header.
        self.rows.append((row.number - 2, f"{row.actual_columns} fields, expected {row.expected_columns}: {text}"))
        return "skip"


class _Rejoined:
    """A file object for Arrow: bytes already read, then the rest of a stream."""

    closed = False

    def __init__(self, head: bytes, stream: TextStream) -> None:
        self._head = head
        self._stream = stream

    def read(self, num_bytes: int) -> bytes:
        piece = self._head[:num_bytes]
        self._head = self._head[num_bytes:]
        return piece + self._stream.read(num_bytes - len(piece)) if len(piece) < num_bytes else piece

    def close(self) -> None:
        """Arrow closes what it reads; the stream is its opener's to close."""


def _open(file: _Rejoined, kind: str, column: str, skipped: _SkippedRows) -> Any:
    return pv.open_csv(
        pa.PythonFile(file, mode="r"),
        read_options=pv.ReadOptions(use_threads=False, block_size=BATCH_BYTES),
        parse_options=pv.ParseOptions(delimiter=_DELIMITERS[kind], newlines_in_values=True, invalid_row_handler=skipped),
        convert_options=pv.ConvertOptions(
            check_utf8=False, include_columns=[column], column_types={column: pa.large_binary()}, strings_can_be_null=False
        ),
    )


def _pieces(reader: Any, stream: TextStream, part: Part, part_index: int, start: int, skipped: _SkippedRows) -> Iterator[Piece]:
    row = 0
    before = 0
    while True:
        # Arrow parses one block ahead at most when it opens, so the rows skipped so far may lie behind this batch.
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            break
        bad = np.array([number for number, _ in skipped.rows], dtype=np.int64)
        rows = np.setdiff1d(np.arange(row, row + batch.num_rows + len(bad), dtype=np.int64), bad)[: batch.num_rows]
        stop = int(rows[-1]) + 1 if len(rows) else row
        consumed = stream.input_position()
        if stop > start:
            yield Piece(
                path=part.path,
                texts=batch.column(0),
                positions=rows,
                unit="row",
                cursor=Cursor(part_index, stop),
                num_input_bytes=consumed - before,
                rejects=[Reject(part.path, number, "bad_row", detail) for number, detail in skipped.rows if number < stop],
            )
        before = consumed
        skipped.rows = [entry for entry in skipped.rows if entry[0] >= stop]
        row = stop
    if skipped.rows:
        yield Piece(
            path=part.path,
            texts=pa.array([], pa.large_binary()),
            positions=np.zeros(0, np.int64),
            unit="row",
            cursor=Cursor(part_index, skipped.rows[-1][0] + 1),
            num_input_bytes=0,
            rejects=[Reject(part.path, number, "bad_row", detail) for number, detail in skipped.rows],
        )
