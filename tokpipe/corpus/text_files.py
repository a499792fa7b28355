"""Plain text: a document a file, a line, or a paragraph between blank lines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tokpipe.corpus.batches import Cursor, Piece
from tokpipe.corpus.compression import TextStream
from tokpipe.corpus.formats import FILE_DOCUMENT_LIMIT_BYTES, too_large_for_one_document
from tokpipe.corpus.record_blocks import PARAGRAPHS, TEXT_LINES, find_blank, find_lines, iter_record_blocks, take_slices
from tokpipe.corpus.rejects import Reject
from tokpipe.corpus.split_table import Part
from tokpipe.errors import UnreadableFileError

BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_SAMPLE_BYTES = 4096
_MIN_SAMPLE_BYTES = 32
_HIGH_BYTE_SHARE = 0.9


def starts_as_utf16(head: bytes) -> bool:
    """Return whether a file's first bytes are UTF-16 (or UTF-32): by the byte order mark, or by every second byte.

    Without a mark, UTF-16 of Devanagari and ASCII is valid UTF-8 by accident: its high bytes are 0x09 and 0x00, tabs and NULs. No
    text has one of these as nearly every second byte and letters between.
    """
    if head[:2] in _UTF16_BOMS:
        return True
    shares = []
    for sample in (head[0:_SAMPLE_BYTES:2], head[1:_SAMPLE_BYTES:2]):
        shares.append((sample.count(b"\0") + sample.count(b"\t")) / max(1, len(sample)))
    return len(head) >= _MIN_SAMPLE_BYTES and max(shares) > _HIGH_BYTE_SHARE >= 2 * min(shares)


def refuse_utf16(name: str, head: bytes) -> None:
    """Raise if a file of many records is UTF-16: to refuse each of its records would say too little.

    Raises:
        UnreadableFileError: naming the file.
    """
    if starts_as_utf16(head):
        raise UnreadableFileError(f"{name}: is UTF-16. Expected UTF-8; convert it, e.g. with `iconv -f UTF-16 -t UTF-8`.")


def read_file_document(name: str, part: Part, part_index: int, start: int) -> Iterator[Piece]:
    """Yield a whole `.txt` file as one document.

    Raises:
        UnreadableFileError: if the file is damaged, larger than one document may be, or not as large as planned.
    """
    if start > 0:
        return
    with TextStream(name) as stream:
        # One byte more than there should be, and no more: reading allocates what it asks for.
        data = stream.read(FILE_DOCUMENT_LIMIT_BYTES + 1 if stream.compression else part.num_bytes + 1)
        if not stream.compression and len(data) != part.num_bytes:
            raise UnreadableFileError(f"{name}: its size is not the {part.num_bytes:,} bytes it was planned with. Plan again.")
    if len(data) > FILE_DOCUMENT_LIMIT_BYTES:
        raise UnreadableFileError(too_large_for_one_document(name, len(data)))
    rejects = []
    texts = pa.array([data.removeprefix(BOM)] if data else [], pa.large_binary())
    if starts_as_utf16(data):
        detail = "the file is UTF-16; convert it to UTF-8"
        rejects, texts = [Reject(part.path, 0, "utf16", detail)], pa.array([], pa.large_binary())
    yield Piece(
        path=part.path,
        texts=texts,
        positions=np.zeros(len(texts), np.int64),
        unit="byte",
        cursor=Cursor(part_index + 1, 0),
        num_input_bytes=part.num_bytes,
        rejects=rejects,
        blank=0 if data else 1,
    )


def read_text_records(name: str, part: Part, part_index: int, start: int) -> Iterator[Piece]:
    """Yield the lines or paragraphs of a `.txt` file that begin in a part's range.

    Raises:
        UnreadableFileError: if the file is damaged or UTF-16.
    """
    by_line = part.format == "lines"
    before = start
    for offset, block, consumed in iter_record_blocks(name, start, part.stop, TEXT_LINES if by_line else PARAGRAPHS):
        skip = 0
        if offset == 0:
            refuse_utf16(name, block)
            skip = len(BOM) if block.startswith(BOM) else 0
        starts, stops = find_lines(block)
        starts[0] += skip
        blank = find_blank(block, starts, stops)
        num_blank = int(blank.sum()) if by_line else 0
        filled = np.flatnonzero(~blank)
        if by_line:
            starts, stops = starts[filled], stops[filled]
        elif len(filled):
            breaks = np.flatnonzero(np.diff(filled) > 1)
            starts = starts[filled[np.append(0, breaks + 1)]]
            stops = stops[filled[np.append(breaks, len(filled) - 1)]]
        else:
            starts = stops = np.zeros(0, np.int64)
        yield Piece(
            path=part.path,
            texts=take_slices(block, starts, stops),
            positions=starts + offset,
            unit="byte",
            cursor=Cursor(part_index, offset + len(block)),
            num_input_bytes=max(0, consumed - before),
            blank=num_blank,
        )
        before = max(before, consumed)
