"""ShardWriter: batches of documents in, one `.bin` + `.idx` pair out, or nothing.

Ids go straight to the disk and into the hash. Of each document only its length is kept, as an int32 that moves to an unnamed
file when there are many, so memory does not grow with the number of documents. Nothing has its final name before `commit`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokpipe.errors import ShardError
from tokpipe.shards.durable import fsync_folder, side_path
from tokpipe.shards.format import (
    BIN_SUFFIX,
    IDX_SUFFIX,
    MAX_DOCUMENTS,
    IndexHeader,
    TokenDtype,
    as_token_ids,
    check_lengths,
    document_byte_offsets,
    token_dtype,
)

SPILL_BYTES = 8 << 20
"""Lengths held in memory (2 million documents) before they move to a file."""
_BLOCK_DOCUMENTS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardInfo:
    """What a committed shard holds; hashes are xxh3-128 in hex."""

    num_tokens: int
    num_documents: int
    bin_bytes: int
    idx_bytes: int
    bin_xxh3: str
    idx_xxh3: str


class _HashedFile:
    """A file under a side name that is hashed while it is written."""

    def __init__(self, final: Path) -> None:
        self.final = final
        self.side = side_path(final)
        self.num_bytes = 0
        self._hash = xxhash.xxh3_128()
        self._file: BinaryIO = self.side.open("xb", buffering=1 << 20)

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.num_bytes += len(data)

    def flush_to_disk(self) -> str:
        """Everything on the disk, the file closed; returns the hash."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return str(self._hash.hexdigest())

    def discard(self) -> None:
        # Closing flushes, which fails once more on a full disk; the file goes away all the same.
        with contextlib.suppress(OSError):
            self._file.close()
        self.side.unlink(missing_ok=True)


class ShardWriter:
    """Write one shard; a context manager that leaves nothing behind unless `commit` returned.

    Args:
        prefix: the shard's path without `.bin` and `.idx`; its folder is made if need be.
        dtype: "uint16", or "int32" for vocabularies above 65,500.
    """

    def __init__(self, prefix: str | os.PathLike[str], *, dtype: TokenDtype) -> None:
        self.prefix = Path(prefix)
        self.dtype: TokenDtype = dtype
        self.num_tokens = 0
        self.num_documents = 0
        self._itemsize = token_dtype(dtype).itemsize
        self._bin: _HashedFile | None = None
        self._idx: _HashedFile | None = None
        self._lengths: SpooledTemporaryFile[bytes] | None = None
        self._closed = False

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abort()

    def append(self, ids: NDArray[Any], offsets: NDArray[np.int64]) -> None:
        """Add a batch of documents, each already with its `</s>`.

        Args:
            ids: (num_tokens,) integers of any type; copied only if they are not in the shard's dtype.
            offsets: (num_documents + 1,) int64; document i is `ids[offsets[i]:offsets[i + 1]]`.

        Raises:
            ValueError: if an id does not fit the dtype, a document is empty or too long, or the offsets do not cover the ids.
            ShardError: if the disk refuses; nothing of the shard is left, and the writer cannot be used any more.
        """
        self._require_open()
        if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or offsets[-1] != len(ids):
            raise ValueError(f"offsets must run from 0 to {len(ids)} (the number of ids), got {offsets!r}")
        lengths = np.diff(offsets)
        check_lengths(lengths)
        if self.num_documents + len(lengths) > MAX_DOCUMENTS:
            raise ValueError(f"{self.prefix}: a shard holds at most {MAX_DOCUMENTS:,} documents; begin another shard before")
        stored = as_token_ids(ids, self.dtype)
        if not len(lengths):
            return
        with self._clean_up_on_error():
            if self._bin is None or self._lengths is None:
                self.prefix.parent.mkdir(parents=True, exist_ok=True)
                self._bin = _HashedFile(self._final(BIN_SUFFIX))
                self._lengths = SpooledTemporaryFile(max_size=SPILL_BYTES, dir=str(self.prefix.parent))  # noqa: SIM115
            self._bin.write(stored.data.cast("B"))
            self._lengths.write(lengths.astype("<i4").tobytes())
        self.num_tokens += len(stored)
        self.num_documents += len(lengths)

    def commit(self) -> ShardInfo | None:
        """Publish the pair, `.bin` before `.idx`, both flushed to the disk first; None (and no file) if it holds no document.

        Raises:
            ShardError: if the disk refuses; neither final name exists then.
        """
        self._require_open()
        if self._bin is None:
            self._closed = True
            return None
        with self._clean_up_on_error():
            self._idx = _HashedFile(self._final(IDX_SUFFIX))
            for block in self._index_blocks():
                self._idx.write(block)
            info = ShardInfo(
                num_tokens=self.num_tokens,
                num_documents=self.num_documents,
                bin_bytes=self._bin.num_bytes,
                idx_bytes=self._idx.num_bytes,
                bin_xxh3=self._bin.flush_to_disk(),
                idx_xxh3=self._idx.flush_to_disk(),
            )
            self._publish(self._bin, self._idx)
        self._bin = self._idx = None
        self.abort()
        return info

    def abort(self) -> None:
        """Remove what was written so far; does nothing after `commit`."""
        self._closed = True
        for file in (self._bin, self._idx):
            if file is not None:
                file.discard()
        self._bin = self._idx = None
        if self._lengths is not None:
            with contextlib.suppress(OSError):
                self._lengths.close()
        self._lengths = None

    def _final(self, suffix: str) -> Path:
        return self.prefix.with_name(self.prefix.name + suffix)

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self.prefix}: this writer was committed or aborted; open another one")

    @contextlib.contextmanager
    def _clean_up_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.abort()
            raise ShardError(
                f"{self.prefix}: could not be written after {self.num_documents:,} documents ({self.num_tokens:,} tokens): "
                f"{error}. Nothing of it was kept. Free space or mend the disk, then run the same command again."
            ) from error
        except BaseException:
            self.abort()
            raise

    def _length_blocks(self) -> Iterator[NDArray[np.int32]]:
        assert self._lengths is not None
        self._lengths.seek(0)
        while block := self._lengths.read(4 * _BLOCK_DOCUMENTS):
            yield np.frombuffer(block, dtype="<i4")

    def _index_blocks(self) -> Iterator[bytes]:
        """The index file from start to end, a few megabytes at a time."""
        yield IndexHeader(dtype=self.dtype, num_documents=self.num_documents).pack()
        for lengths in self._length_blocks():
            yield lengths.tobytes()
        byte = 0
        for lengths in self._length_blocks():
            offsets, byte = document_byte_offsets(lengths, first=byte, itemsize=self._itemsize)
            yield offsets.tobytes()
        for start in range(0, self.num_documents + 1, _BLOCK_DOCUMENTS):
            stop = min(start + _BLOCK_DOCUMENTS, self.num_documents + 1)
            yield np.arange(start, stop, dtype="<i8").tobytes()

    def _publish(self, bin_file: _HashedFile, idx_file: _HashedFile) -> None:
        try:
            bin_file.side.replace(bin_file.final)
            idx_file.side.replace(idx_file.final)
            fsync_folder(self.prefix.parent)
        except BaseException:
            # Half a pair is no shard: a new .bin beside an older .idx would be worse than neither.
            for path in (bin_file.final, idx_file.final):
                path.unlink(missing_ok=True)
            raise
