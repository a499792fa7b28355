"""Read one half of a shard from start to end, a few megabytes at a time, and say what breaks docs/format.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokpipe.errors import ShardFormatError
from tokpipe.shards.folder import DatasetFiles
from tokpipe.shards.format import (
    BIN_SUFFIX,
    HEADER_BYTES,
    IDX_SUFFIX,
    document_byte_offsets,
    indices_start,
    offsets_start,
    parse_header,
    token_dtype,
)
from tokpipe.shards.manifest import Manifest, ShardEntry

OnBytes = Callable[[int], None]
BLOCK_BYTES = 4 << 20
_BLOCK_DOCUMENTS = 1 << 18
ProblemKind = Literal[
    "missing", "extra", "unreadable", "size", "swapped", "hash", "format", "vocabulary", "eos", "bos", "tokenizer"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One broken promise."""

    path: str
    """File or shard, relative to the dataset folder."""
    kind: ProblemKind
    message: str
    """What, where, expected against found, and what to do."""


def read_blocks(files: DatasetFiles, name: str, on_bytes: OnBytes) -> Iterator[memoryview]:
    """A file's bytes in blocks of 4 MiB; a block is overwritten by the next."""
    buffer = memoryview(bytearray(BLOCK_BYTES))
    with files.open(name) as file:
        while num_bytes := _fill(file, buffer):
            yield buffer[:num_bytes]
            on_bytes(num_bytes)


def _fill(file: Any, buffer: memoryview) -> int:
    """Fill a buffer from a file whose reads may be short; returns how much there was."""
    filled = 0
    while filled < len(buffer):
        num_bytes = file.readinto(buffer[filled:])
        if not num_bytes:
            break
        filled += num_bytes
    return filled


def hash_file(files: DatasetFiles, name: str, on_bytes: OnBytes = lambda _: None) -> str:
    """xxh3-128 of a file, in hex."""
    digest = xxhash.xxh3_128()
    for block in read_blocks(files, name, on_bytes):
        digest.update(block)
    return str(digest.hexdigest())


def scan_index(files: DatasetFiles, entry: ShardEntry, manifest: Manifest, on_bytes: OnBytes) -> tuple[list[Problem], str]:
    """Check an `.idx` file whose size is right: header, lengths, byte offsets, document indices.

    Returns:
        At most one problem (the first one found in the file), and the file's hash.

    Raises:
        OSError: if it cannot be read.
    """
    name = entry.name + IDX_SUFFIX
    digest = hash_file(files, name, on_bytes)
    with files.open(name) as file:
        try:
            header = parse_header(file.read(HEADER_BYTES), where=name)
            if (header.dtype, header.num_documents) != (manifest.dtype, entry.num_documents):
                raise ShardFormatError(
                    f"{name}: says {header.num_documents:,} documents of {header.dtype}, the manifest says "
                    f"{entry.num_documents:,} of {manifest.dtype}. Copy the file back or rebuild the shard."
                )
            _check_arrays(file, name, entry, token_dtype(header.dtype).itemsize)
        except ShardFormatError as error:
            return [Problem(path=name, kind="format", message=str(error))], digest
    return [], digest


def _check_arrays(file: BinaryIO, name: str, entry: ShardEntry, itemsize: int) -> None:
    count, byte = entry.num_documents, 0
    for start in range(0, count, _BLOCK_DOCUMENTS):
        stop = min(start + _BLOCK_DOCUMENTS, count)
        lengths = _read_at(file, HEADER_BYTES + 4 * start, stop - start, "<i4")
        if lengths.min() < 1:
            at = int(lengths.argmin())
            raise ShardFormatError(
                f"{name}: document {start + at:,} has {lengths[at]:,} tokens, expected at least one. Rebuild the shard."
            )
        expected, byte = document_byte_offsets(lengths, first=byte, itemsize=itemsize)
        _compare(_read_at(file, offsets_start(count) + 8 * start, stop - start, "<i8"), expected, start, name, "byte offset")
    for start in range(0, count + 1, _BLOCK_DOCUMENTS):
        stop = min(start + _BLOCK_DOCUMENTS, count + 1)
        found = _read_at(file, indices_start(count) + 8 * start, stop - start, "<i8")
        _compare(found, np.arange(start, stop), start, name, "document index")
    if byte != entry.bin_bytes:
        raise ShardFormatError(
            f"{name}: the documents' lengths add up to {byte:,} bytes, the .bin has {entry.bin_bytes:,}. Rebuild the shard."
        )


def _compare(found: NDArray[np.int64], expected: NDArray[np.int64], start: int, name: str, what: str) -> None:
    if not np.array_equal(found, expected):
        at = int(np.flatnonzero(found != expected)[0])
        raise ShardFormatError(
            f"{name}: {what} {start + at:,} is {found[at]:,}, expected {expected[at]:,}. Copy the file back or rebuild the shard."
        )


def _read_at(file: BinaryIO, offset: int, count: int, dtype: str) -> NDArray[Any]:
    array = np.empty(count, dtype)
    file.seek(offset)
    if _fill(file, array.data.cast("B")) != array.nbytes:
        raise OSError(f"the file ended inside bytes {offset:,} to {offset + array.nbytes:,} while it was read")
    return array


class _Ends:
    """Positions of the documents' last tokens, in order, read from the index as far as they are asked for."""

    def __init__(self, files: DatasetFiles, entry: ShardEntry) -> None:
        self._files = files
        self._name = entry.name + IDX_SUFFIX
        self._count = entry.num_documents
        self._read = 0
        self._pending = np.empty(0, np.int64)
        self._total = 0

    def below(self, stop: int) -> NDArray[np.int64]:
        """The ends that lie below token `stop` and were not handed out before."""
        while self._read < self._count and self._total < stop:
            with self._files.open(self._name) as file:
                count = min(_BLOCK_DOCUMENTS, self._count - self._read)
                lengths = _read_at(file, HEADER_BYTES + 4 * self._read, count, "<i4")
                ends = np.cumsum(lengths, dtype=np.int64) + self._total
                self._pending = np.concatenate([self._pending, ends - 1])
                self._read += count
                self._total = int(ends[-1])
        cut = int(np.searchsorted(self._pending, stop))
        ready, self._pending = self._pending[:cut], self._pending[cut:]
        return ready


@dataclass(slots=True)
class _Tally:
    """How often one promise was broken, and where first."""

    kind: ProblemKind
    text: str
    count: int = 0
    first: str = ""

    def add(self, count: int, first: str) -> None:
        if not self.count:
            self.first = first
        self.count += count


class _TokenScan:
    """The checks on the ids of one `.bin`, block by block."""

    def __init__(self, entry: ShardEntry, manifest: Manifest, ends: _Ends | None) -> None:
        tokenizer = manifest.tokenizer
        self._vocab_size, self._eos_id = tokenizer.vocab_size, tokenizer.eos_id
        self._bos_id = tokenizer.bos_id if tokenizer.prepend_bos else None
        self._ends = ends
        self._name = entry.name + BIN_SUFFIX
        self._start = 0
        self._documents = 0
        self._at_document_start = True
        self._range = _Tally("vocabulary", f"ids are not below the vocabulary's size {self._vocab_size:,}")
        self._missing = _Tally("eos", f"documents do not end in </s> (id {self._eos_id})")
        self._inside = _Tally("eos", f"</s> (id {self._eos_id}) inside documents")
        self._begins = _Tally("bos", f"documents do not begin with <s> (id {self._bos_id})")

    def add(self, ids: NDArray[Any]) -> None:
        """Check the next ids."""
        if int(ids.max()) >= self._vocab_size or int(ids.min()) < 0:
            outside = np.flatnonzero((ids >= self._vocab_size) | (ids < 0))
            self._range.add(len(outside), f"token {self._start + outside[0]:,} is {ids[outside[0]]:,}")
        if self._ends is not None:
            ends = self._ends.below(self._start + len(ids)) - self._start
            self._check_ends(ids, ends)
            if self._bos_id is not None:
                self._check_begins(ids, ends)
            self._documents += len(ends)
        self._start += len(ids)

    def _check_ends(self, ids: NDArray[Any], ends: NDArray[np.int64]) -> None:
        hits = np.flatnonzero(ids == self._eos_id)
        if np.array_equal(ends, hits):
            return
        missing = np.flatnonzero(ids[ends] != self._eos_id)
        if len(missing):
            first = f"document {self._documents + missing[0]:,} ends in id {ids[ends[missing[0]]]:,}"
            self._missing.add(len(missing), first)
        inside = np.setdiff1d(hits, ends)
        if len(inside):
            document = self._documents + int(np.searchsorted(ends, inside[0]))
            self._inside.add(len(inside), f"document {document:,} has one at token {self._start + inside[0]:,} of the shard")

    def _check_begins(self, ids: NDArray[Any], ends: NDArray[np.int64]) -> None:
        starts = np.concatenate([[0], ends + 1]) if self._at_document_start else ends + 1
        self._at_document_start = bool(len(ends)) and int(ends[-1]) == len(ids) - 1
        starts = starts[starts < len(ids)]
        wrong = starts[ids[starts] != self._bos_id]
        if len(wrong):
            self._begins.add(len(wrong), f"the one at token {self._start + wrong[0]:,} of the shard, with id {ids[wrong[0]]:,}")

    def problems(self) -> list[Problem]:
        """At most one problem per promise, with the count and the first place."""
        return [
            Problem(
                path=self._name,
                kind=tally.kind,
                message=f"{self._name}: {tally.count:,} {tally.text}; the first: {tally.first}. "
                "These ids are not this tokenizer's work: rebuild the shard.",
            )
            for tally in (self._range, self._missing, self._inside, self._begins)
            if tally.count
        ]


def scan_tokens(
    files: DatasetFiles, entry: ShardEntry, manifest: Manifest, on_bytes: OnBytes, *, with_index: bool
) -> tuple[list[Problem], str]:
    """Check a `.bin` file whose size is right: every id below the vocabulary, `</s>` exactly where documents end.

    Args:
        files: the dataset's.
        entry: what the manifest says of the shard.
        manifest: for the tokenizer.
        on_bytes: called with the number of bytes read.
        with_index: whether the index is sound; if not, only the ids are checked.

    Returns:
        At most one problem per promise, with the count and the first place, and the file's hash.

    Raises:
        OSError: if it cannot be read.
    """
    digest = xxhash.xxh3_128()
    scan = _TokenScan(entry, manifest, _Ends(files, entry) if with_index else None)
    for block in read_blocks(files, entry.name + BIN_SUFFIX, on_bytes):
        digest.update(block)
        scan.add(np.frombuffer(block, dtype=token_dtype(manifest.dtype)))
    return scan.problems(), str(digest.hexdigest())
