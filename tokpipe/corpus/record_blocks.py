"""Blocks of whole records from a byte range: who owns which record, decided so that any cut gives every record exactly once.

A record ends at a newline, or at a blank line. It belongs to the range that holds its first byte: a range skips to the first
record that begins in it, and reads past its end to finish the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokpipe.corpus.compression import TextStream
from tokpipe.errors import UnreadableFileError

BLOCK_BYTES = 16 << 20
MAX_RECORD_BYTES = 1 << 30
MAX_BLANK_LINE_BYTES = 1024
"""A longer line of white space is no blank line; so a range need only look back this far to know where a paragraph begins."""
_LOOK_PAST_BYTES = 1 << 16
_WHITE = np.zeros(256, dtype=np.bool_)
_WHITE[list(b" \t\r\v\f")] = True
_LF = 0x0A
_CR = 0x0D


@dataclass(frozen=True, slots=True)
class RecordRule:
    """How records of one format end. An end is the index behind the last byte of a record."""

    lone_cr: bool
    """Take a CR that no LF follows as a line end, and give it as LF."""
    look_back_bytes: int
    """How far before an end its record has to be seen to know the end."""
    last_end: Callable[[bytes], int]
    """Bytes that begin with a record -> the last end in them, 0 for none."""
    first_end: Callable[[bytes, int], int]
    """(bytes, k) -> the first end at or behind k, 0 for none; if the bytes begin inside a record, k is `look_back_bytes`."""


def find_lines(block: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (starts, stops) of a block's lines, (num_lines,) each, without their LF or CRLF."""
    data = np.frombuffer(block, dtype=np.uint8)
    newlines = np.flatnonzero(data == _LF).astype(np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), newlines + 1])
    stops = np.append(newlines, len(block))
    if starts[-1] == len(block):
        starts, stops = starts[:-1], stops[:-1]
    ends_in_cr = np.zeros(len(stops), dtype=np.bool_)
    some = stops > starts
    ends_in_cr[some] = data[stops[some] - 1] == _CR
    return starts, stops - ends_in_cr


def find_blank(block: bytes, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which lines hold white space alone, at most `MAX_BLANK_LINE_BYTES` of it."""
    data = np.frombuffer(block, dtype=np.uint8)
    blank: NDArray[np.bool_] = stops == starts
    suspects = np.flatnonzero((stops > starts) & (stops - starts <= MAX_BLANK_LINE_BYTES))
    suspects = suspects[_WHITE[data[starts[suspects]]] & _WHITE[data[stops[suspects] - 1]]]
    for line in suspects.tolist():
        blank[line] = bool(_WHITE[data[starts[line] : stops[line]]].all())
    return blank


def _blank_line_ends(block: bytes) -> NDArray[np.int64]:
    """Return the ends of a block's blank lines that a newline ends."""
    starts, stops = find_lines(block)
    if not block.endswith(b"\n"):
        starts, stops = starts[:-1], stops[:-1]
    ends = np.append(starts[1:], len(block))[: len(starts)] if block.endswith(b"\n") else find_lines(block)[0][1:]
    return ends[find_blank(block, starts, stops)]


def _last_paragraph_end(block: bytes) -> int:
    ends = _blank_line_ends(block)
    return int(ends[-1]) if len(ends) else 0


def _first_paragraph_end(block: bytes, at_least: int) -> int:
    # Lines that end long before `at_least` do not matter; so what may be the rest of a line is left out with them.
    skipped = max(0, at_least - MAX_BLANK_LINE_BYTES - 3)
    if skipped:
        skipped = block.find(b"\n", skipped) + 1
    ends = _blank_line_ends(block[skipped:]) + skipped
    ends = ends[ends >= at_least]
    return int(ends[0]) if len(ends) else 0


def _last_line_end(block: bytes) -> int:
    return block.rfind(b"\n") + 1


def _first_line_end(block: bytes, at_least: int) -> int:
    return block.find(b"\n", max(0, at_least - 1)) + 1


JSON_LINES = RecordRule(False, 1, _last_line_end, _first_line_end)
TEXT_LINES = RecordRule(True, 1, _last_line_end, _first_line_end)
PARAGRAPHS = RecordRule(True, MAX_BLANK_LINE_BYTES + 4, _last_paragraph_end, _first_paragraph_end)


def iter_record_blocks(name: str, start: int, stop: int, rule: RecordRule) -> Iterator[tuple[int, bytes, int]]:
    """Yield (offset of its first byte, block, bytes of the file consumed so far): the records that begin in [start, stop), whole.

    Blocks hold about `BLOCK_BYTES`; where one ends depends only on where it begins. The last record of a file may lack its end.

    Args:
        name: full name of the file.
        start: first byte; a record that begins before it belongs to another range and is skipped.
        stop: end byte of the range, -1 for the end of the file; the last record is read past it.
        rule: how records end.

    Raises:
        UnreadableFileError: if the file is damaged, or a record is longer than 1 GiB.
    """
    with TextStream(name, start=max(0, start - rule.look_back_bytes)) as stream:
        if stop >= 0 and stream.compression:
            raise UnreadableFileError(f"{name}: planned as a plain file, but it is compressed now. Plan again.")
        window = _Window(stream, rule)
        if start > 0:
            window.skip_to_record(start)
        while stop < 0 or window.offset < stop:
            block = window.next_block(stop)
            if not block:
                return
            yield window.offset, block, stream.input_position()
            window.drop(len(block))


class _Window:
    """Bytes read ahead of a stream, from `offset` on."""

    def __init__(self, stream: TextStream, rule: RecordRule) -> None:
        self._stream = stream
        self._rule = rule
        self._bytes = b""
        self._at_end = False
        self.offset = stream.position

    def _fill(self, size: int) -> None:
        """Hold at least `size` bytes, or all that are left."""
        if self._at_end or len(self._bytes) >= size:
            return
        more = self._stream.read(size - len(self._bytes))
        self._at_end = len(self._bytes) + len(more) < size
        self._bytes += more
        if self._rule.lone_cr:
            self._bytes = _convert_lone_cr(self._bytes, self._at_end)

    def drop(self, num_bytes: int) -> None:
        """Forget the first bytes."""
        self._bytes = self._bytes[num_bytes:]
        self.offset += num_bytes

    def skip_to_record(self, start: int) -> None:
        """Drop everything before the first record that begins at or behind `start`."""
        size = start - self.offset + _LOOK_PAST_BYTES
        while True:
            self._fill(size)
            end = self._rule.first_end(self._bytes, start - self.offset)
            if end or self._at_end:
                self.drop(end or len(self._bytes))
                return
            size = self._grow(size)

    def next_block(self, stop: int) -> bytes:
        """Return whole records from `offset` on; empty at the end of the file."""
        size = BLOCK_BYTES if stop < 0 else min(BLOCK_BYTES, stop - self.offset + _LOOK_PAST_BYTES)
        while True:
            self._fill(size)
            block = self._bytes[:size]
            is_last = self._at_end and len(self._bytes) <= size
            cut = len(block) if is_last else self._rule.last_end(block)
            if stop >= 0 and self.offset + cut > stop:
                cut = self._rule.first_end(block, stop - self.offset) or cut
            if cut or is_last:
                return block[:cut]
            size = self._grow(size)

    def _grow(self, size: int) -> int:
        if size >= MAX_RECORD_BYTES:
            raise UnreadableFileError(
                f"{self._stream.name}: the record at byte {self.offset:,} is longer than {MAX_RECORD_BYTES:,} bytes. Expected "
                "records that end at a newline; is it another kind of file?"
            )
        return min(2 * size, MAX_RECORD_BYTES)


def _convert_lone_cr(block: bytes, at_end: bool) -> bytes:
    """Turn every CR that no LF follows into LF; one at the end of the block stays until what follows is known."""
    if b"\r" not in block:
        return block
    data = np.frombuffer(block, dtype=np.uint8).copy()
    following = np.append(data[1:], 0 if at_end else _LF)
    data[(data == _CR) & (following != _LF)] = _LF
    return data.tobytes()


def take_slices(block: bytes, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Return (len(starts),) copies of block[starts[i]:stops[i]]; the slices must be in order and must not overlap."""
    if not len(starts):
        return pa.array([], pa.large_binary())
    edges = np.empty(2 * len(starts), dtype=np.int64)
    edges[0::2], edges[1::2] = starts, stops
    both = pa.Array.from_buffers(pa.large_binary(), len(edges) - 1, [None, pa.py_buffer(edges), pa.py_buffer(block)])
    return both.take(pa.array(np.arange(0, len(edges) - 1, 2)))
