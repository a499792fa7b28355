"""The bytes of a shard: `docs/format.md` as code. No files here, only numbers in and bytes out.

A shard is a Megatron-Core indexed dataset: `NAME.bin` holds token ids back to back, `NAME.idx` says where each document lies.
The index has a 34-byte header and three arrays; every integer is little-endian and, after 34 bytes, none is aligned:

    offset       size   type    what
    0            9      bytes   magic, "MMIDIDX" and two NULs
    9            8      u64     version, 1
    17           1      u8      dtype code of the ids: 8 uint16, 4 int32
    18           8      u64     S, number of documents (Megatron: sequences)
    26           8      u64     S + 1, entries of the document index array
    34           4 S    int32   length of each document, in tokens
    34 + 4 S     8 S    int64   where each document starts in the .bin, in bytes
    34 + 12 S    8 S+8  int64   0, 1, ..., S: every document is one sequence

so that `.idx` is 42 + 20 S bytes and `.bin` is itemsize x sum of the lengths.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokpipe.errors import ShardFormatError

BIN_SUFFIX = ".bin"
IDX_SUFFIX = ".idx"
SIDE_SUFFIX = ".part"
"""End of the names that unfinished files carry; nothing with this suffix is ever part of a dataset."""

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER_BYTES = 34
MAX_DOCUMENTS = 2**31 - 1
"""Documents in one shard; Megatron keeps document numbers in int32."""
MAX_DOCUMENT_TOKENS = 2**31 - 1
"""Tokens in one document; the length array is int32."""
MAX_UINT16_VOCAB = 65_500
"""Largest vocabulary stored as uint16. Megatron's builder takes int32 from here on, its loader's shortcut only above 65,536; they
agree below both, and the dtype code in the index decides in any case."""

TokenDtype = Literal["uint16", "int32"]
DTYPE_CODES: dict[TokenDtype, int] = {"uint16": 8, "int32": 4}
_DTYPES: dict[str, np.dtype[Any]] = {"uint16": np.dtype("<u2"), "int32": np.dtype("<i4")}
_DTYPE_OF_CODE = {code: dtype for dtype, code in DTYPE_CODES.items()}
# Codes that Megatron defines and tokpipe refuses: named in the error, so that a foreign file is recognised as one.
_FOREIGN_CODES = {1: "uint8", 2: "int8", 3: "int16", 5: "int64", 6: "float64", 7: "float32"}
_HEADER = struct.Struct("<9sQBQQ")


REDO = (
    "Copy the shard's two files back, or delete dataset.json and the receipt under build/receipts that names the shard and run "
    "the same build again: only that task is redone."
)
"""The next step after most kinds of damage."""


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """What the first 34 bytes of an `.idx` file say."""

    dtype: TokenDtype
    num_documents: int

    def pack(self) -> bytes:
        """The 34 bytes."""
        return _HEADER.pack(MAGIC, VERSION, DTYPE_CODES[self.dtype], self.num_documents, self.num_documents + 1)


def parse_header(raw: bytes, *, where: str) -> IndexHeader:
    """Parse the start of an `.idx` file; `where` is its path, for the messages.

    Raises:
        ShardFormatError: if the bytes are too few, or magic, version, dtype code or the two counts are not as specified.
    """
    if len(raw) < HEADER_BYTES:
        raise ShardFormatError(f"{where}: holds {len(raw)} bytes, an index has at least {HEADER_BYTES}. {REDO}")
    magic, version, code, num_documents, num_indices = _HEADER.unpack_from(raw)
    if magic != MAGIC:
        raise ShardFormatError(f"{where}: starts with {magic!r}, expected {MAGIC!r}. This is not a Megatron-style index file.")
    if version != VERSION:
        raise ShardFormatError(f"{where}: format version {version:,}, this tokpipe reads version {VERSION}. {REDO}")
    if code not in _DTYPE_OF_CODE:
        known = f"Megatron's {_FOREIGN_CODES[code]}" if code in _FOREIGN_CODES else "no dtype at all"
        raise ShardFormatError(f"{where}: dtype code {code} is {known}; tokpipe reads 8 (uint16) and 4 (int32). {REDO}")
    if not 1 <= num_documents <= MAX_DOCUMENTS:
        raise ShardFormatError(f"{where}: promises {num_documents:,} documents, a shard has 1 to {MAX_DOCUMENTS:,}. {REDO}")
    if num_indices != num_documents + 1:
        raise ShardFormatError(
            f"{where}: {num_documents:,} sequences but {num_indices:,} document indices, expected {num_documents + 1:,}: "
            "a document is not one sequence here, so another tool wrote this file. tokpipe reads one sequence per document."
        )
    return IndexHeader(dtype=_DTYPE_OF_CODE[code], num_documents=num_documents)


def dtype_for_vocab(vocab_size: int) -> TokenDtype:
    """The dtype that ids of a vocabulary are stored as.

    Example:
        >>> dtype_for_vocab(32_000), dtype_for_vocab(65_500), dtype_for_vocab(65_501)
        ('uint16', 'uint16', 'int32')
    """
    if not 1 <= vocab_size <= 2**31:
        raise ValueError(f"vocab_size must be in [1, 2^31], got {vocab_size:,}")
    return "uint16" if vocab_size <= MAX_UINT16_VOCAB else "int32"


def token_dtype(dtype: TokenDtype) -> np.dtype[Any]:
    """The numpy dtype of ids on disk, little-endian whatever the machine.

    Raises:
        ValueError: if it is neither "uint16" nor "int32".
    """
    if dtype not in _DTYPES:
        raise ValueError(f'dtype must be "uint16" or "int32", got {dtype!r}')
    return _DTYPES[dtype]


def idx_num_bytes(num_documents: int) -> int:
    """Size of an `.idx` file: 42 + 20 S."""
    return 42 + 20 * num_documents


def bin_num_bytes(num_tokens: int, dtype: TokenDtype) -> int:
    """Size of a `.bin` file."""
    return token_dtype(dtype).itemsize * num_tokens


def offsets_start(num_documents: int) -> int:
    """Byte at which the array of byte offsets begins."""
    return HEADER_BYTES + 4 * num_documents


def indices_start(num_documents: int) -> int:
    """Byte at which the document indices begin."""
    return HEADER_BYTES + 12 * num_documents


def document_byte_offsets(lengths: NDArray[np.int32], *, first: int, itemsize: int) -> tuple[NDArray[np.int64], int]:
    """Byte offsets of consecutive documents, the first of which starts at byte `first`.

    Args:
        lengths: (n,) int32, tokens.
        first: byte offset of the first document.
        itemsize: bytes of one token.

    Returns:
        (n,) little-endian int64 offsets in bytes, and the byte at which the next document starts.

    Example:
        >>> document_byte_offsets(np.array([3, 1], np.int32), first=10, itemsize=2)
        (array([10, 16]), 18)
    """
    ends = np.cumsum(lengths, dtype=np.int64) * itemsize + first
    offsets = np.empty(len(lengths), dtype="<i8")
    offsets[:1] = first
    offsets[1:] = ends[:-1]
    return offsets, int(ends[-1]) if len(ends) else first


def check_lengths(lengths: NDArray[np.int64]) -> None:
    """Refuse lengths that cannot be stored.

    Raises:
        ValueError: if a document is empty, or longer than int32 can say.
    """
    if not len(lengths):
        return
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest < 1:
        at = int(lengths.argmin())
        raise ValueError(f"document {at} of the batch has {shortest} tokens, a document has at least one (its </s>)")
    if longest > MAX_DOCUMENT_TOKENS:
        at = int(lengths.argmax())
        raise ValueError(f"document {at} of the batch has {longest:,} tokens, the most is {MAX_DOCUMENT_TOKENS:,}")


def as_token_ids(ids: NDArray[Any], dtype: TokenDtype) -> NDArray[Any]:
    """Ids in the dtype of the disk, checked rather than wrapped; no copy when they have it already.

    Raises:
        ValueError: if `ids` are not one-dimensional integers, or an id does not fit.
    """
    target = token_dtype(dtype)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"ids must be a one-dimensional integer array, got {ids.dtype} with shape {ids.shape}")
    if len(ids) and (ids.dtype != target or target.kind == "i"):
        top = int(np.iinfo(target).max)
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high > top:
            bad = low if low < 0 else high
            raise ValueError(f"id {bad:,} does not fit {dtype}, which holds 0 to {top:,}; ids are never wrapped")
    return np.ascontiguousarray(ids, dtype=target)
