"""The text column, checked before anything is read: a wrong name should cost seconds, not a night."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokpipe.corpus.compression import TextStream
from tokpipe.corpus.inventory import Inventory
from tokpipe.corpus.json_records import read_record
from tokpipe.corpus.storage import join, open_arrow, unreadable
from tokpipe.errors import MissingColumnError, UnreadableFileError

_SAMPLE_BYTES = 1 << 20
_SAMPLE_FILES = 16


def check_text_column(inventory: Inventory, column: tuple[str, ...]) -> None:
    """Look for the text column in the first JSON lines and Parquet files of every source.

    A source of JSON lines passes if any record in the first megabyte of its first files has the column; which single records lack
    it is the reader's to say.

    Raises:
        MissingColumnError: listing the columns or keys that exist.
        UnreadableFileError: if one of these files is damaged.
    """
    table = inventory.table
    not_empty = pc.greater(table["num_bytes"], 0)
    for formats in (("jsonl", "json"), ("parquet",)):
        chosen = table.filter(pc.and_(not_empty, pc.is_in(table["format"].cast(pa.string()), pa.array(formats))))
        for source in pc.unique(chosen["source"].cast(pa.string())).to_pylist():
            paths = (
                chosen.filter(pc.equal(chosen["source"].cast(pa.string()), source))["path"].slice(0, _SAMPLE_FILES).to_pylist()
            )
            names = [join(inventory.root, path) for path in paths]
            if formats == ("parquet",):
                _check_parquet(names[0], column)
            else:
                _check_json(names, column)


def _check_parquet(name: str, column: tuple[str, ...]) -> None:
    try:
        with open_arrow(name) as file:
            schema = pq.read_schema(file)
    except UnreadableFileError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFileError(unreadable(name, "Parquet", error)) from error
    check_column(name, schema, column)


def _check_json(names: list[str], column: tuple[str, ...]) -> None:
    """Raise if there are records and none of them has the column."""
    first_missing = ""
    for name in names:
        with TextStream(name) as stream:
            lines = stream.read(_SAMPLE_BYTES).removeprefix(b"\xef\xbb\xbf").split(b"\n")
        # The last line may be cut, unless it is the only one.
        for line in filter(bytes.strip, lines[:-1] or lines):
            _, reason, detail = read_record(line, column)
            if reason != "missing_text":
                return
            first_missing = first_missing or f"{name}: {detail}"
    if first_missing:
        raise MissingColumnError(
            f"{first_missing}. No record of its source has it, as far as was looked. Choose one with --text-column."
        )


def check_column(name: str, schema: pa.Schema, column: tuple[str, ...]) -> None:
    """Check that a schema has a column of text at this path.

    Raises:
        MissingColumnError: if not; the message lists the text columns that exist.
    """
    kind: pa.DataType = pa.struct(list(schema))
    for step in column:
        index = kind.get_field_index(step) if pa.types.is_struct(kind) else -1
        if index < 0:
            raise MissingColumnError(f"{name}: no column {'.'.join(column)!r}. {_list_columns(schema)}")
        kind = kind.field(index).type
    if not _is_text(kind):
        raise MissingColumnError(f"{name}: column {'.'.join(column)!r} holds {kind}, not text. {_list_columns(schema)}")


def _list_columns(schema: pa.Schema) -> str:
    text = ", ".join(_text_paths(list(schema), "")) or "none"
    return f"Columns of text: {text}; all columns: {', '.join(schema.names)}. Choose one with --text-column."


def _is_text(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def _text_paths(fields: list[pa.Field], prefix: str) -> Iterator[str]:
    for entry in fields:
        if _is_text(entry.type):
            yield prefix + entry.name
        elif pa.types.is_struct(entry.type):
            yield from _text_paths(list(entry.type), f"{prefix}{entry.name}.")
