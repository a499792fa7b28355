"""Parquet and Arrow files: the text column alone, row group by row group, in batches of a bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from tokpipe.corpus.batches import BATCH_BYTES, Cursor, Piece
from tokpipe.corpus.columns import check_column
from tokpipe.corpus.rejects import Reject
from tokpipe.corpus.split_table import Part
from tokpipe.corpus.storage import open_arrow, unreadable
from tokpipe.errors import UnreadableFileError

_READ_AHEAD_BYTES = 8 << 20
_ARROW_MAGIC = b"ARROW1"
_CONTINUATION = b"\xff\xff\xff\xff"
_OLD_END_OF_STREAM = bytes(4)
_END_OF_STREAM = _CONTINUATION + _OLD_END_OF_STREAM


def read_parquet(name: str, part: Part, part_index: int, start: int, column: tuple[str, ...]) -> Iterator[Piece]:
    """Yield the text column of a part's row groups, from row `start` of the file on.

    Raises:
        UnreadableFileError: if the footer or a page is damaged.
        MissingColumnError: if the file has no such column.
    """
    try:
        with open_arrow(name) as file:
            table = pq.ParquetFile(file, buffer_size=_READ_AHEAD_BYTES)
            check_column(name, table.schema_arrow, column)
            footer = table.metadata
            stop = footer.num_row_groups if part.stop < 0 else part.stop
            first_rows = np.cumsum([0] + [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]).tolist()
            sizes = [_text_bytes(footer.row_group(i), column) for i in range(part.start, stop)]
            for group in range(part.start, stop):
                if first_rows[group + 1] <= start:
                    continue
                rows = first_rows[group + 1] - first_rows[group]
                share = part.num_bytes * sizes[group - part.start] / max(1, sum(sizes)) / max(1, rows)
                batches = table.iter_batches(
                    batch_size=_rows_at_a_time(rows, sizes[group - part.start]),
                    row_groups=[group],
                    columns=[".".join(column)],
                    use_threads=False,
                )
                yield from _pieces(part, part_index, batches, first_rows[group], start, column, share)
    except UnreadableFileError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFileError(unreadable(name, "Parquet", error)) from error


def _text_bytes(group: Any, column: tuple[str, ...]) -> int:
    """Return the uncompressed size of the text column in one row group."""
    chunks = (group.column(i) for i in range(group.num_columns))
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == ".".join(column))


def _rows_at_a_time(num_rows: int, num_bytes: int) -> int:
    # Dictionary encoding can make a column look smaller than its text; 64 k rows bound what that costs.
    return int(min(65_536, max(1, num_rows * BATCH_BYTES // max(1, num_bytes))))


def read_arrow(name: str, part: Part, part_index: int, start: int, column: tuple[str, ...]) -> Iterator[Piece]:
    """Yield the text column of an Arrow IPC file or stream, from row `start` on.

    Raises:
        UnreadableFileError: if the file is damaged, or a stream lacks its end mark.
        MissingColumnError: if the file has no such column.
    """
    try:
        with open_arrow(name) as file:
            batches, schema = _open_ipc(name, file)
            check_column(name, schema, column)
            row = 0
            for batch, num_bytes in batches:
                if batch.num_rows and row + batch.num_rows > start:
                    only = pa.RecordBatch.from_arrays([batch.column(column[0])], names=[column[0]])
                    step = _rows_at_a_time(batch.num_rows, only.nbytes)
                    slices = (only.slice(first, step) for first in range(0, batch.num_rows, step))
                    yield from _pieces(part, part_index, slices, row, start, column, num_bytes / batch.num_rows)
                row += batch.num_rows
    except UnreadableFileError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFileError(unreadable(name, "Arrow", error)) from error


def _open_ipc(name: str, file: Any) -> tuple[Iterator[tuple[pa.RecordBatch, float]], pa.Schema]:
    """Return (record batches with the size of each on disk, schema) of an IPC file or stream."""
    size = file.size()
    head = file.read(len(_ARROW_MAGIC))
    if head == _ARROW_MAGIC:
        reader = pa.ipc.open_file(file)
        count = reader.num_record_batches
        return ((reader.get_batch(i), size / count) for i in range(count)), reader.schema
    end = _END_OF_STREAM if head.startswith(_CONTINUATION) else _OLD_END_OF_STREAM
    file.seek(max(0, size - len(end)))
    # Legal by Arrow's letter, but what a writer that was interrupted leaves looks just the same.
    if file.read(len(end)) != end:
        raise UnreadableFileError(f"{name}: an Arrow stream without its end mark; it was cut off. Fetch or write the file again.")
    file.seek(0)
    stream = pa.ipc.open_stream(file)
    return _measured(stream, file), stream.schema


def _measured(stream: Any, file: Any) -> Iterator[tuple[pa.RecordBatch, float]]:
    before = 0
    for batch in stream:
        yield batch, float(file.tell() - before)
        before = file.tell()


def _pieces(
    part: Part,
    part_index: int,
    batches: Iterator[pa.RecordBatch],
    first_row: int,
    start: int,
    column: tuple[str, ...],
    bytes_a_row: float,
) -> Iterator[Piece]:
    """Turn record batches, the first of which begins at `first_row`, into pieces; leave out what ends before `start`."""
    row = first_row
    for batch in batches:
        stop = row + batch.num_rows
        if stop > start:
            texts, valid = _text_column(batch, column)
            rows = np.arange(row, stop, dtype=np.int64)
            yield Piece(
                path=part.path,
                texts=texts,
                positions=rows[valid],
                unit="row",
                cursor=Cursor(part_index, stop),
                num_input_bytes=round(stop * bytes_a_row) - round(row * bytes_a_row),
                rejects=[Reject(part.path, missing, "null_text", "") for missing in rows[~valid].tolist()],
            )
        row = stop


def _text_column(batch: pa.RecordBatch, column: tuple[str, ...]) -> tuple[pa.LargeBinaryArray, Any]:
    """Return (texts without nulls, (num_rows,) mask of the rows that have one)."""
    values = batch.column(column[0])
    if len(column) > 1:
        values = pc.struct_field(values, list(column[1:]))
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    # Through binary: a cast of text would stop at the first invalid byte, and a copy ends up without an array offset.
    kind = values.type
    if pa.types.is_string(kind):
        values = values.view(pa.binary())
    elif pa.types.is_large_string(kind):
        values = values.view(pa.large_binary())
    elif kind == pa.string_view():
        values = values.cast(pa.large_string())
    values = values.cast(pa.large_binary())
    return values.drop_null() if not valid.all() else values, valid
