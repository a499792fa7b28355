"""From what a format's reader found to clean batches of text: merged to about 16 MB, validated, and with their rejects logged.

Every check that text has to pass whatever its format is made here, on Arrow columns, once a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokpipe.corpus.rejects import Reject, RejectLog

BATCH_BYTES = 16 << 20
_SCAN_BYTES = 1 << 18


class Cursor(NamedTuple):
    """Where to go on in a split: everything before it is done."""

    part: int
    """Index into the split's parts; the number of parts means the end."""
    position: int
    """Next byte (of the decompressed text) or row of that part; anything before the part's start means its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Records of one part, as its reader found them: not yet validated or cleaned."""

    path: str
    texts: pa.LargeBinaryArray
    """Without nulls."""
    positions: NDArray[np.int64]
    """(len(texts),) byte offset or row of each."""
    unit: str
    cursor: Cursor
    """Behind the last record."""
    num_input_bytes: int
    rejects: list[Reject] = field(default_factory=list)
    blank: int = 0
    is_utf8: bool = False
    """The reader has validated the bytes that the texts come from, so that it need not be done twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBatch:
    """Some documents of a split, ready for a tokenizer."""

    texts: pa.LargeStringArray
    """Offset 0, no nulls, none empty, valid UTF-8, line ends as LF. Owns its memory."""
    paths: tuple[str, ...]
    """The files the documents come from, as the inventory names them; at least one."""
    path_starts: NDArray[np.int64]
    """(len(paths) + 1,) documents [path_starts[k], path_starts[k + 1]) come from paths[k]."""
    positions: NDArray[np.int64]
    """(len(texts),) byte offset (in the decompressed file) or row of each document."""
    position_unit: str
    """`byte` or `row`; of a batch never both."""
    num_input_bytes: int
    """Bytes of the files on disk read for it; all batches of a split add up to about `Split.num_bytes`."""
    cursor: Cursor
    """`read_split(..., start=cursor)` goes on behind this batch."""

    @property
    def path(self) -> str:
        """The first file; see `place` for the one of a document."""
        return self.paths[0]

    def place(self, row: int) -> str:
        """Return where one document was found, for a message: `hi/a.jsonl, byte 1,234`."""
        index = int(np.searchsorted(self.path_starts, row, side="right")) - 1
        return f"{self.paths[index]}, {self.position_unit} {int(self.positions[row]):,}"


def merge_pieces(pieces: Iterable[Piece], log: RejectLog) -> Iterator[TextBatch]:
    """Merge small pieces, clean them, and yield batches of about `BATCH_BYTES`.

    Where a batch ends depends only on where it begins, so a restart from a cursor yields the same batches. When a batch comes
    out, `log` holds the rejects up to its cursor and none from behind it.
    """
    held: list[Piece] = []
    num_bytes = 0
    for piece in pieces:
        if held and (num_bytes + piece.texts.nbytes > BATCH_BYTES or held[-1].unit != piece.unit):
            yield from _finish(held, log)
            held, num_bytes = [], 0
        held.append(piece)
        num_bytes += piece.texts.nbytes
        if num_bytes >= BATCH_BYTES:
            yield from _finish(held, log)
            held, num_bytes = [], 0
    yield from _finish(held, log)


def _finish(pieces: list[Piece], log: RejectLog) -> Iterator[TextBatch]:
    """Clean one batch's pieces; yields nothing if no document is left."""
    if not pieces:
        return
    for piece in pieces:
        log.num_records += len(piece.texts) + len(piece.rejects)
        log.blank += piece.blank
        for reject in piece.rejects:
            log.add(*reject)
    starts = np.cumsum([0] + [len(piece.texts) for piece in pieces], dtype=np.int64)
    positions = np.concatenate([piece.positions for piece in pieces])
    texts, keep, refused = clean_texts(
        pa.concat_arrays([piece.texts for piece in pieces]), is_utf8=all(piece.is_utf8 for piece in pieces)
    )
    for row, reason, detail in refused:
        piece = pieces[int(np.searchsorted(starts, row, side="right")) - 1]
        log.add(piece.path, int(positions[row]), reason, detail)
    if not len(texts):
        return
    if keep is not None:
        positions = positions[keep]
        starts = np.concatenate([[0], np.cumsum(keep)])[starts]
    yield TextBatch(
        texts=texts,
        paths=tuple(piece.path for piece in pieces),
        path_starts=starts,
        positions=positions,
        position_unit=pieces[-1].unit,
        num_input_bytes=sum(piece.num_input_bytes for piece in pieces),
        cursor=pieces[-1].cursor,
    )


def clean_texts(
    texts: pa.LargeBinaryArray, *, is_utf8: bool = False
) -> tuple[pa.LargeStringArray, NDArray[np.bool_] | None, list[tuple[int, str, str]]]:
    """Validate every text as UTF-8, turn CRLF and lone CR into LF, and refuse what is empty or white space alone.

    Args:
        texts: without nulls, array offset 0.
        is_utf8: the texts are known to be valid UTF-8; validation is the greater part of the cost.

    Returns:
        (clean texts, kept, refused): `kept` is a (len(texts),) mask, or `None` if every text stays; `refused` lists
        (row, reason, detail) in order.
    """
    refused: list[tuple[int, str, str]] = []
    strings = _as_strings(texts)
    keep = np.ones(len(texts), dtype=np.bool_)
    if not is_utf8 and not _is_valid(strings):
        refused += _find_invalid(texts)
        keep[[row for row, _, _ in refused]] = False
        # The bad texts are emptied, not removed, so that row numbers stay what they are until the end.
        strings = _as_strings(pc.if_else(pa.array(keep), texts, pa.scalar(b"", pa.large_binary())))
    if _holds_byte(strings, 0x0D):
        strings = pc.replace_substring(pc.replace_substring(strings, "\r\n", "\n"), "\r", "\n")
    blank = _find_blank(strings) & keep
    refused += [(int(row), "empty", "") for row in np.flatnonzero(blank)]
    keep &= ~blank
    if keep.all():
        return strings, None, []
    refused.sort()
    return pa.concat_arrays([strings.filter(pa.array(keep))]), keep, refused


def _as_strings(texts: pa.LargeBinaryArray) -> pa.LargeStringArray:
    _, offsets, data = texts.buffers()
    return pa.LargeStringArray.from_buffers(len(texts), offsets, data)


def _is_valid(strings: pa.LargeStringArray) -> bool:
    try:
        strings.validate(full=True)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return False
    return True


def _find_invalid(texts: pa.LargeBinaryArray) -> list[tuple[int, str, str]]:
    found = []
    for row, value in enumerate(texts):
        try:
            value.as_buffer().to_pybytes().decode("utf-8")
        except UnicodeDecodeError as error:
            found.append((row, "invalid_utf8", f"{error.reason} at byte {error.start:,} of the text"))
    return found


def _text_bytes(strings: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return (bytes, (n + 1,) offsets) of an array with offset 0, as views."""
    _, offsets, data = strings.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64, count=len(strings) + 1) if len(strings) else np.zeros(1, np.int64)
    return (np.frombuffer(data, dtype=np.uint8) if data else np.zeros(0, np.uint8)), ends


def _holds_byte(strings: pa.LargeStringArray, byte: int) -> bool:
    data, ends = _text_bytes(strings)
    # In pieces that stay in the cache: a mask of the whole costs more to allocate than to fill.
    starts = range(int(ends[0]), int(ends[-1]), _SCAN_BYTES)
    return any((data[start : min(start + _SCAN_BYTES, int(ends[-1]))] == byte).any() for start in starts)


def _find_blank(strings: pa.LargeStringArray) -> NDArray[np.bool_]:
    """Return which texts are empty after trimming Unicode white space."""
    data, ends = _text_bytes(strings)
    blank: NDArray[np.bool_] = ends[1:] == ends[:-1]
    some = np.flatnonzero(~blank)
    first = data[ends[:-1][some]]
    # Only a text that begins like white space is trimmed: ASCII controls and space, or the lead bytes of U+0085 to U+3000.
    rows = some[(first <= 0x20) | np.isin(first, (0xC2, 0xE1, 0xE2, 0xE3))]
    if len(rows):
        lengths = pc.binary_length(pc.utf8_trim_whitespace(strings.take(pa.array(rows)))).to_numpy()
        blank[rows[lengths == 0]] = True
    return blank
