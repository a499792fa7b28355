"""Shard: a memory-mapped view of one `.bin` + `.idx` pair.

Opening reads the header, the ends of the index arrays and two file sizes, whatever the size of the shard; the arrays are mapped
when they are first touched. Views hand out no copies and keep their map alive, so they outlive the `Shard`.
"""

from __future__ import annotations

import mmap
import os
import sys
from bisect import bisect_left, bisect_right
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tokpipe.errors import MissingShardError, ShardError, ShardFormatError
from tokpipe.shards.format import (
    BIN_SUFFIX,
    HEADER_BYTES,
    IDX_SUFFIX,
    REDO,
    TokenDtype,
    bin_num_bytes,
    idx_num_bytes,
    indices_start,
    offsets_start,
    parse_header,
    token_dtype,
)


class ExpectedShard(Protocol):
    """What the manifest promises about a shard; a `ShardEntry` is one."""

    @property
    def num_tokens(self) -> int:
        """Ids in the `.bin`."""
        ...

    @property
    def num_documents(self) -> int:
        """Documents in the `.idx`."""
        ...

    @property
    def bin_bytes(self) -> int:
        """Size of the `.bin`."""
        ...


class Shard:
    """One shard, open for reading. Made by `Shard.open`; pickles as its path and is checked again where it is unpickled."""

    def __init__(self, prefix: Path, *, dtype: TokenDtype, num_tokens: int, num_documents: int) -> None:
        self.prefix = prefix
        self.dtype: TokenDtype = dtype
        self.num_tokens = num_tokens
        self.num_documents = num_documents
        self._itemsize = token_dtype(dtype).itemsize

    @classmethod
    def open(cls, prefix: str | os.PathLike[str], expect: ExpectedShard | None = None) -> Shard:
        """Open a pair and check all that can be checked without reading it through.

        Args:
            prefix: path without `.bin` and `.idx`.
            expect: what the manifest says of this shard, if there is a manifest.

        Raises:
            MissingShardError: if one of the two files is not there.
            ShardError: if the disk refuses to read.
            ShardFormatError: if header, sizes or the ends of the index contradict docs/format.md, each other or `expect`.
        """
        prefix = Path(prefix)
        bin_path, idx_path = prefix.with_name(prefix.name + BIN_SUFFIX), prefix.with_name(prefix.name + IDX_SUFFIX)
        if sys.byteorder != "little":
            raise ShardFormatError(f"{prefix}: shards are little-endian and this machine is not; read them on another machine.")
        try:
            bin_bytes = bin_path.stat().st_size
            with idx_path.open("rb", buffering=0) as file:
                dtype, num_tokens, num_documents = _read_index_ends(file.fileno(), str(idx_path))
        except FileNotFoundError as error:
            raise MissingShardError(f"{error.filename}: there is no such file, so the shard cannot be read. {REDO}") from error
        except OSError as error:
            raise ShardError(f"{prefix}: cannot be read: {error}. Check the disk and the file's permissions.") from error
        if bin_bytes != bin_num_bytes(num_tokens, dtype):
            raise ShardFormatError(
                f"{bin_path}: holds {bin_bytes:,} bytes, but its index promises {num_tokens:,} tokens "
                f"({bin_num_bytes(num_tokens, dtype):,} bytes). {REDO}"
            )
        if expect is not None and (expect.num_tokens, expect.num_documents) != (num_tokens, num_documents):
            raise ShardFormatError(
                f"{prefix}: holds {num_documents:,} documents and {num_tokens:,} tokens, the manifest says "
                f"{expect.num_documents:,} and {expect.num_tokens:,}. This is another shard's file; `tokpipe verify` tells which."
            )
        if expect is not None and expect.bin_bytes != bin_bytes:
            raise ShardFormatError(
                f"{bin_path}: holds {dtype} ids in {bin_bytes:,} bytes, the manifest says {expect.bin_bytes:,}: "
                "they were written for a vocabulary of another size. `tokpipe verify` tells more."
            )
        return cls(prefix, dtype=dtype, num_tokens=num_tokens, num_documents=num_documents)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Shard.open, (self.prefix,))

    def __repr__(self) -> str:
        return f"Shard({str(self.prefix)!r}, {self.num_documents:,} documents, {self.num_tokens:,} tokens, {self.dtype})"

    def __len__(self) -> int:
        return self.num_documents

    @cached_property
    def _bin_map(self) -> mmap.mmap:
        return _map_file(self.prefix.with_name(self.prefix.name + BIN_SUFFIX), bin_num_bytes(self.num_tokens, self.dtype))

    @cached_property
    def _idx_map(self) -> mmap.mmap:
        return _map_file(self.prefix.with_name(self.prefix.name + IDX_SUFFIX), idx_num_bytes(self.num_documents))

    @cached_property
    def _byte_offsets(self) -> memoryview:
        # A memoryview reads unaligned integers one at a time, so `bisect` works on the map itself;
        # np.searchsorted would first copy the whole unaligned array.
        start = offsets_start(self.num_documents)
        return memoryview(self._idx_map)[start : start + 8 * self.num_documents].cast("q")

    @cached_property
    def tokens(self) -> NDArray[Any]:
        """(num_tokens,) read-only view of all ids, uint16 or int32. A view keeps the map alive, also after the shard is gone."""
        return np.frombuffer(self._bin_map, dtype=token_dtype(self.dtype), count=self.num_tokens)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """(num_documents,) int32 view of the documents' lengths in tokens. Unaligned: numpy copies it for most operations."""
        return np.frombuffer(self._idx_map, dtype="<i4", count=self.num_documents, offset=HEADER_BYTES)

    def document(self, index: int) -> NDArray[Any]:
        """View of one document's ids, `</s>` included.

        Raises:
            IndexError: if there is no such document.
            ShardFormatError: if the index points outside the ids.
        """
        if not 0 <= index < self.num_documents:
            raise IndexError(f"{self.prefix}: document {index:,} of {self.num_documents:,}")
        start = self._byte_offsets[index]
        stop = self._byte_offsets[index + 1] if index + 1 < self.num_documents else self.num_tokens * self._itemsize
        if not 0 <= start < stop <= self.num_tokens * self._itemsize or start % self._itemsize or stop % self._itemsize:
            raise ShardFormatError(
                f"{self.prefix}{IDX_SUFFIX}: document {index:,} lies at bytes {start:,} to {stop:,}, but the .bin holds "
                f"{self.num_tokens * self._itemsize:,}. The index is damaged. {REDO}"
            )
        return self.tokens[start // self._itemsize : stop // self._itemsize]

    def document_of_token(self, token: int) -> int:
        """Number of the document that a token belongs to, by bisection on the map: no copy, a few page touches.

        Raises:
            IndexError: if there is no such token.
        """
        if not 0 <= token < self.num_tokens:
            raise IndexError(f"{self.prefix}: token {token:,} of {self.num_tokens:,}")
        return bisect_right(self._byte_offsets, token * self._itemsize) - 1

    def document_starts(self, start_token: int, stop_token: int) -> NDArray[np.int64]:
        """Token offsets, within the shard, at which documents start in [start_token, stop_token).

        Returns:
            (n,) int64, ascending; a copy. Costs two bisections, the second over at most stop_token - start_token documents.

        Raises:
            IndexError: if the range does not lie inside the shard.
        """
        if not 0 <= start_token <= stop_token <= self.num_tokens:
            raise IndexError(f"{self.prefix}: tokens {start_token:,} to {stop_token:,} of {self.num_tokens:,}")
        offsets = self._byte_offsets
        low = bisect_left(offsets, start_token * self._itemsize)
        # No document is empty, so the range cannot hold more documents than tokens.
        most = min(self.num_documents, low + stop_token - start_token)
        high = bisect_left(offsets, stop_token * self._itemsize, low, most)
        raw = np.frombuffer(self._idx_map, dtype="<i8", count=high - low, offset=offsets_start(self.num_documents) + 8 * low)
        return raw // self._itemsize

    def advise(self, option: int, start_token: int = 0, stop_token: int | None = None) -> None:
        """Tell the kernel about tokens to come or done with, e.g. `mmap.MADV_WILLNEED` or `mmap.MADV_DONTNEED`.

        Without a range it is about the whole shard, and then about what is mapped of its index too.
        """
        page = mmap.PAGESIZE
        start = start_token * self._itemsize // page * page
        stop = (self.num_tokens if stop_token is None else stop_token) * self._itemsize
        if stop > start:
            self._bin_map.madvise(option, start, stop - start)
        if (start_token, stop_token) == (0, None) and "_idx_map" in self.__dict__:
            self._idx_map.madvise(option)

    def release(self) -> None:
        """Forget the maps (and their file handles); views handed out stay valid, and the next use maps again."""
        for name in ("tokens", "_byte_offsets", "_bin_map", "_idx_map"):
            self.__dict__.pop(name, None)


def _map_file(path: Path, num_bytes: int) -> mmap.mmap:
    """Map a whole file whose size was checked when the shard was opened.

    Raises:
        MissingShardError: if it is gone by now.
        ShardFormatError: if its size changed; reading past the end of a map would kill the process.
    """
    try:
        with path.open("rb", buffering=0) as file:
            found = os.fstat(file.fileno()).st_size
            if found != num_bytes:
                raise ShardFormatError(f"{path}: held {num_bytes:,} bytes when it was opened and holds {found:,} now. {REDO}")
            return mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise MissingShardError(f"{path}: was there when the shard was opened and is gone now. Copy it back.") from error


def _read_index_ends(descriptor: int, where: str) -> tuple[TokenDtype, int, int]:
    """Check an index by its header, size and the ends of its arrays; returns dtype, tokens and documents."""
    header = parse_header(os.pread(descriptor, HEADER_BYTES, 0), where=where)
    count = header.num_documents
    found, expected = os.fstat(descriptor).st_size, idx_num_bytes(count)
    if found != expected:
        kind = "is cut short" if found < expected else "has bytes after its end"
        raise ShardFormatError(f"{where}: {kind}: holds {found:,} bytes, {count:,} documents take {expected:,}. {REDO}")
    last_length = _read_int(descriptor, offsets_start(count) - 4, 4)
    first_byte = _read_int(descriptor, offsets_start(count), 8)
    last_byte = _read_int(descriptor, indices_start(count) - 8, 8)
    first_index = _read_int(descriptor, indices_start(count), 8)
    last_index = _read_int(descriptor, expected - 8, 8)
    itemsize = token_dtype(header.dtype).itemsize
    if first_byte != 0:
        raise ShardFormatError(f"{where}: the first document starts at byte {first_byte:,}, expected 0. {REDO}")
    if last_byte < 0 or last_byte % itemsize:
        raise ShardFormatError(
            f"{where}: the last document starts at byte {last_byte:,}, which no {header.dtype} token does. {REDO}"
        )
    if last_length < 1:
        raise ShardFormatError(f"{where}: the last document has {last_length:,} tokens, expected at least one. {REDO}")
    if (first_index, last_index) != (0, count):
        raise ShardFormatError(
            f"{where}: the document indices run from {first_index:,} to {last_index:,}, expected 0 to {count:,}. {REDO}"
        )
    return header.dtype, last_byte // itemsize + last_length, count


def _read_int(descriptor: int, offset: int, size: int) -> int:
    return int.from_bytes(os.pread(descriptor, size, offset), "little", signed=True)
