"""One forward stream of decompressed bytes, whatever the file's compression, that knows when the file was cut short.

gzip, bzip2 and xz go through the standard library's decompressors, which say where a stream ends: that is how several members are
read as one, zero padding is told from garbage, and a truncated file is told from a whole one. zstd goes through pyarrow, which
reads every frame (empty and skippable ones too) and refuses a truncated one.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import IO, Any, Protocol

import pyarrow as pa

from tokpipe.corpus.formats import compression_of_magic
from tokpipe.corpus.storage import HEAD_BYTES, open_file
from tokpipe.errors import UnreadableFileError

CHUNK_BYTES = 1 << 20
_NAMES = {"gz": "gzip", "bz2": "bzip2", "xz": "xz", "zst": "zstd"}


class _Source(Protocol):
    def read(self, num_bytes: int) -> bytes:
        """Return up to `num_bytes`; empty at the end only."""
        ...

    def input_position(self) -> int:
        """Bytes of the file consumed so far."""
        ...

    def close(self) -> None: ...


class TextStream:
    """Decompressed bytes of one file, read forward from any offset.

    Args:
        name: full name of the file, for opening and for messages.
        start: offset in the decompressed bytes to begin at. A plain file seeks; a compressed one is decompressed up to there.

    Raises:
        UnreadableFileError: from the constructor and from `read`, if the file is truncated or damaged, naming file and offset.
    """

    def __init__(self, name: str, *, start: int = 0) -> None:
        self.name = name
        self._file = open_file(name)
        head = self._file.read(HEAD_BYTES)
        self._file.seek(0)
        self.compression = compression_of_magic(head)
        self._source = _open_source(self._file, self.compression, name)
        self.position = 0
        """Offset of the next byte, in the decompressed bytes."""
        if not self.compression:
            self._file.seek(start)
            self.position = start
        while self.position < start and self.read(min(start - self.position, 16 * CHUNK_BYTES)):
            pass

    def read(self, num_bytes: int) -> bytes:
        """Return exactly `num_bytes`, fewer only at the end of the file."""
        pieces = []
        wanted = num_bytes
        while wanted > 0:
            piece = self._source.read(wanted)
            if not piece:
                break
            pieces.append(piece)
            wanted -= len(piece)
            self.position += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def input_position(self) -> int:
        """Return how much of the file on disk is consumed, in bytes."""
        return self._source.input_position()

    def close(self) -> None:
        """Close the file."""
        self._source.close()
        self._file.close()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _open_source(file: IO[bytes], compression: str, name: str) -> _Source:
    if not compression:
        return _PlainSource(file, name)
    if compression == "zst":
        return _ZstdSource(file, name)
    factories: dict[str, Callable[[], Any]] = {
        # 31: a gzip header is expected, and its CRC and length are checked.
        "gz": lambda: zlib.decompressobj(31),
        "bz2": bz2.BZ2Decompressor,
        "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
    }
    return _MemberSource(file, factories[compression], name, _NAMES[compression])


class _PlainSource:
    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file = file
        self._name = name

    def read(self, num_bytes: int) -> bytes:
        try:
            return self._file.read(num_bytes)
        except Exception as error:  # the libraries behind fsspec raise errors of their own
            offset = self._file.tell()
            raise UnreadableFileError(
                f"{self._name}: cannot be read at byte {offset:,} ({error}). Run the same command again."
            ) from error

    def input_position(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        pass


class _ZstdSource:
    """All frames of a zstd file, through pyarrow."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._name = name
        self._raw = pa.PythonFile(file, mode="r")
        self._stream = pa.CompressedInputStream(self._raw, "zstd")
        self._given = 0

    def read(self, num_bytes: int) -> bytes:
        try:
            piece: bytes = self._stream.read(min(num_bytes, 16 * CHUNK_BYTES))
        except (OSError, pa.ArrowInvalid) as error:
            raise UnreadableFileError(_damage(self._name, "zstd", self._given, self._raw.tell(), str(error))) from error
        self._given += len(piece)
        return piece

    def input_position(self) -> int:
        return int(self._raw.tell())

    def close(self) -> None:
        self._stream.close()


class _MemberSource:
    """All members of a gzip, bzip2 or xz file, through the standard library."""

    def __init__(self, file: IO[bytes], factory: Callable[[], Any], name: str, kind: str) -> None:
        self._file = file
        self._factory = factory
        self._decoder = factory()
        self._name = name
        self._kind = kind
        self._input = b""
        self._num_read = 0
        self._num_given = 0
        self._member_start = 0
        self._member_is_new = True

    def read(self, num_bytes: int) -> bytes:
        while True:
            if self._decoder.eof and not self._next_member():
                return b""
            try:
                piece = self._step(min(num_bytes, CHUNK_BYTES))
            except (zlib.error, OSError, lzma.LZMAError, EOFError) as error:
                offset = self._member_start if self._member_is_new else self._num_read
                raise UnreadableFileError(_damage(self._name, self._kind, self._num_given, offset, str(error))) from error
            if piece:
                self._member_is_new = False
                self._num_given += len(piece)
                return piece

    def _step(self, num_bytes: int) -> bytes:
        """Decompress some bytes of the present member; may return nothing although more will come."""
        # zlib hands unused input back; the other two keep it inside and say whether they want more.
        if not self._input and getattr(self._decoder, "needs_input", True):
            self._fill()
        at_end = not self._input and getattr(self._decoder, "needs_input", True)
        data, self._input = self._input, b""
        piece: bytes = self._decoder.decompress(data, num_bytes)
        if at_end and not piece and not self._decoder.eof:
            raise EOFError("the file ends inside the stream")
        if not self._decoder.eof:
            self._input = getattr(self._decoder, "unconsumed_tail", b"")
        return piece

    def _fill(self) -> None:
        self._input = self._file.read(CHUNK_BYTES)
        self._num_read += len(self._input)

    def _next_member(self) -> bool:
        """Go to the next member; False at the end of the file. Zero padding is legal, anything else has to be a member."""
        rest = self._decoder.unused_data.lstrip(b"\0")
        while not rest:
            self._fill()
            if not self._input:
                return False
            rest = self._input.lstrip(b"\0")
        self._input = rest
        self._member_start = self._num_read - len(rest)
        self._member_is_new = True
        self._decoder = self._factory()
        return True

    def input_position(self) -> int:
        return self._num_read - len(self._input)

    def close(self) -> None:
        pass


def _damage(name: str, kind: str, given: int, offset: int, why: str) -> str:
    """Return the message for a damaged compressed file."""
    return (
        f"{name}: its {kind} stream is truncated or damaged at byte {offset:,} of the file, after {given:,} bytes of text "
        f"({why}). Fetch the file again, or take it out of the corpus; nothing of it is used."
    )
