"""JSON lines: Arrow's parser for good blocks, line by line where it refuses one, so that only the bad records are lost.

Arrow reads JSON, not JSON lines: it takes two objects on one line, or one over two lines, without a word. A block is only
believed if every line begins with `{` and ends with `}`, and as many records came out as lines went in: together these leave no
other reading than one record a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from tokpipe.corpus.batches import Cursor, Piece
from tokpipe.corpus.json_records import read_record
from tokpipe.corpus.record_blocks import JSON_LINES, find_lines, iter_record_blocks
from tokpipe.corpus.rejects import Reject
from tokpipe.corpus.split_table import Part
from tokpipe.corpus.text_files import BOM, refuse_utf16
from tokpipe.errors import UnreadableFileError

_WHITE = b" \t\r\n"
_LINE_BY_LINE = 16
_OPEN, _CLOSE = ord("{"), ord("}")


def read_json_lines(name: str, part: Part, part_index: int, start: int, column: tuple[str, ...]) -> Iterator[Piece]:
    """Yield the text of the records that begin in a part's range.

    Raises:
        UnreadableFileError: if the file is damaged or UTF-16, or a `.json` file is not one record a line.
    """
    before = start
    for offset, block, consumed in iter_record_blocks(name, start, part.stop, JSON_LINES):
        skip = 0
        if offset == 0:
            refuse_utf16(name, block)
            skip = len(BOM) if block.startswith(BOM) else 0
            if part.format == "json":
                _check_one_record_a_line(name, block[skip:])
        parsed = _Block(block, skip, column)
        texts = parsed.texts()
        yield Piece(
            path=part.path,
            texts=texts,
            positions=parsed.good_starts() + offset,
            unit="byte",
            cursor=Cursor(part_index, offset + len(block)),
            num_input_bytes=max(0, consumed - before),
            rejects=[Reject(part.path, offset + place, reason, detail) for place, reason, detail in parsed.refused],
            blank=parsed.num_blank,
            # Arrow is given valid UTF-8 alone; only an escaped surrogate could still turn out as something else.
            is_utf8=not _has_escaped_surrogate(block),
        )
        before = max(before, consumed)


def _check_one_record_a_line(name: str, block: bytes) -> None:
    """Refuse a `.json` file that is one big value instead of a record a line."""
    first = block.lstrip(_WHITE).partition(b"\n")[0]
    if not first:
        return
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        kind = "an array" if first.startswith(b"[") else "something else"
        raise UnreadableFileError(
            f"{name}: its first line is {kind}, not a whole JSON object. Expected one record a line; convert it, e.g. with "
            "`jq -c '.[]'`, or name it .jsonl to have bad lines refused one by one."
        )


class _Block:
    """Whole lines of one block, parsed."""

    def __init__(self, block: bytes, skip: int, column: tuple[str, ...]) -> None:
        self._block = block
        self._column = column
        self._schema = _text_schema(column)
        starts, stops = find_lines(block)
        starts[0] += skip
        self._starts, self._stops, odd = self._find_records(starts, stops)
        self.num_blank = len(starts) - len(self._starts)
        self._odd = np.concatenate([[0], np.cumsum(odd)])
        self._good: list[NDArray[np.int64]] = []
        self.refused: list[tuple[int, str, str]] = []
        """(offset in the block, reason, detail), in order."""

    def _find_records(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return (starts, stops, odd) of the lines that are not blank; odd ones do not look like an object."""
        data = np.frombuffer(self._block, dtype=np.uint8)
        filled = stops > starts
        starts, stops = starts[filled], stops[filled]
        odd = (data[starts] != _OPEN) | (data[stops - 1] != _CLOSE)
        keep = np.ones(len(starts), dtype=np.bool_)
        for line in np.flatnonzero(odd).tolist():
            content = self._block[starts[line] : stops[line]].strip(_WHITE)
            keep[line] = bool(content)
            odd[line] = not (content.startswith(b"{") and content.endswith(b"}"))
        return starts[keep], stops[keep], odd[keep]

    def texts(self) -> pa.LargeBinaryArray:
        """Return the text of every good record; fills `refused`."""
        pieces = list(self._parse(0, len(self._starts)))
        return pa.concat_arrays(pieces) if pieces else pa.array([], pa.large_binary())

    def good_starts(self) -> NDArray[np.int64]:
        """Return the offsets of the good records in the block; call after `texts`."""
        return np.concatenate([np.zeros(0, np.int64), *self._good])

    def _parse(self, start: int, stop: int) -> Iterator[pa.LargeBinaryArray]:
        """Parse records [start, stop): at once if Arrow takes them, else by halves, at last line by line."""
        if start == stop:
            return
        texts = self._parse_at_once(start, stop)
        if texts is not None:
            valid = texts.is_valid().to_numpy(zero_copy_only=False)
            self._good.append(self._starts[start:stop][valid])
            if not valid.all():
                for line in (np.flatnonzero(~valid) + start).tolist():
                    self._parse_line(line)
                texts = texts.filter(pa.array(valid))
            yield texts
        elif stop - start > _LINE_BY_LINE:
            middle = (start + stop) // 2
            yield from self._parse(start, middle)
            yield from self._parse(middle, stop)
        else:
            found = [self._parse_line(line) for line in range(start, stop)]
            good = [text is not None for text in found]
            self._good.append(self._starts[start:stop][np.array(good)])
            yield pa.array([text for text in found if text is not None], pa.large_binary())

    def _parse_at_once(self, start: int, stop: int) -> pa.LargeBinaryArray | None:
        """Return (stop - start,) texts with nulls where Arrow found none, or `None` if Arrow's reading cannot be trusted."""
        if self._odd[stop] > self._odd[start]:
            return None
        data = pa.py_buffer(self._block)[int(self._starts[start]) : int(self._stops[stop - 1])]
        if not _is_utf8(data):
            return None
        return _parse_with_arrow(data, stop - start, self._schema, self._column)

    def _parse_line(self, line: int) -> bytes | None:
        """Return one record's text, or `None` after noting why it has none."""
        start, stop = int(self._starts[line]), int(self._stops[line])
        raw = self._block[start:stop]
        text, reason, detail = read_record(raw, self._column)
        if reason == "bad_json" and _is_utf8(pa.py_buffer(raw)) and not self._odd[line + 1] - self._odd[line]:
            # Arrow takes a few spellings that Python does not (`Inf`); what it takes in a good block it must take here.
            again = _parse_with_arrow(pa.py_buffer(raw), 1, self._schema, self._column)
            if again is not None and again[0].is_valid:
                return bytes(again[0].as_py())
        if text is None:
            self.refused.append((start, reason, detail))
        return text


def _text_schema(column: tuple[str, ...]) -> pa.Schema:
    kind: pa.DataType = pa.large_string()
    for name in reversed(column[1:]):
        kind = pa.struct([(name, kind)])
    return pa.schema([(column[0], kind)])


def _has_escaped_surrogate(block: bytes) -> bool:
    """Return whether a block holds an escape such as `\\ud83d`."""
    if b"\\" not in block:
        return False
    data = np.frombuffer(block, dtype=np.uint8)
    escapes = np.flatnonzero(data[:-2] == ord("\\"))
    escapes = escapes[data[escapes + 1] == ord("u")]
    return bool(np.isin(data[escapes + 2], (ord("d"), ord("D"))).any())


def _is_utf8(data: pa.Buffer) -> bool:
    offsets = pa.py_buffer(np.array([0, data.size], dtype=np.int64))
    try:
        pa.LargeStringArray.from_buffers(1, offsets, data).validate(full=True)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return False
    return True


def _parse_with_arrow(
    data: pa.Buffer, num_records: int, schema: pa.Schema, column: tuple[str, ...]
) -> pa.LargeBinaryArray | None:
    try:
        table = pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if table.num_rows != num_records:
        return None
    values = table.column(0)
    if len(column) > 1:
        values = pc.struct_field(values, list(column[1:]))
    return pa.concat_arrays(values.chunks).view(pa.large_binary())
