"""Bytes inside Numba kernels: unaligned loads, a hash, whole-key comparison, copies, and a hash per document.

Text is read eight bytes at a time. Every function takes `stop`, the end of the buffer it may read, and never reads at or after
it, so any Arrow buffer can be used as it is, without padding. Loads are little-endian, like every machine Numba compiles for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from llvmlite import ir
from numba import types, uint64
from numba.extending import intrinsic
from numpy.typing import NDArray

from tokpipe.tokenizer.jit import kernel, kernel_part

HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
HASH_SEED = np.uint64(0xD6E8FEB86659FD93)
ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)

# The five primes of XXH64. Source: xxHash specification, section "XXH64 algorithm description".
PRIME1, PRIME2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
PRIME3, PRIME4, PRIME5 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)


def _load64(typingctx: Any, array: Any, index: Any) -> Any:
    """Eight bytes of a uint8 array from any offset as one uint64. Unchecked: `index + 8` must not pass the array's end."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        word = builder.load(builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(array, types.int64), codegen


load64: Any = intrinsic(_load64)


def _fold_multiply(typingctx: Any, left: Any, right: Any) -> Any:
    """The 128-bit product of two uint64, its high half xored into its low half: one instruction's worth of good mixing."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))
        return builder.xor(builder.trunc(product, ir.IntType(64)), high)

    return types.uint64(types.uint64, types.uint64), codegen


fold_multiply: Any = intrinsic(_fold_multiply)


def _trailing_zeros(typingctx: Any, word: Any) -> Any:
    """How many of a uint64's lowest bits are 0; 64 for 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(0))

    return types.int64(types.uint64), codegen


trailing_zeros: Any = intrinsic(_trailing_zeros)


@kernel_part
def load_part(data: NDArray[np.uint8], start: int, length: int, stop: int) -> Any:
    """The `length` (1 to 8) bytes at `start` as a uint64, zero above; reads nothing at or after `stop`."""
    if start + 8 <= stop:
        return load64(data, start) & (ALL_BITS >> uint64(64 - 8 * length))
    if stop >= 8:
        return (load64(data, stop - 8) >> uint64(8 * (8 - (stop - start)))) & (ALL_BITS >> uint64(64 - 8 * length))
    word = uint64(0)
    for i in range(length):
        word |= uint64(data[start + i]) << uint64(8 * i)
    return word


@kernel_part
def hash_bytes(data: NDArray[np.uint8], start: int, length: int, stop: int) -> Any:
    """A 64-bit hash of `data[start : start + length]`, `length >= 1`; every bit is usable. Not stable between versions."""
    h = HASH_SEED ^ uint64(length)
    i, end = start, start + length
    while end - i > 8:
        h = fold_multiply(h ^ load64(data, i), HASH_MULTIPLIER)
        i += 8
    return fold_multiply(h ^ load_part(data, i, end - i, stop), HASH_MULTIPLIER)


@kernel_part
def copy_bytes(data: NDArray[np.uint8], start: int, out: NDArray[np.uint8], to: int, length: int) -> None:
    """Copy `length` bytes from `data[start]` on to `out[to]` on."""
    for i in range(length):
        out[to + i] = data[start + i]


@kernel_part
def same_bytes(
    left: NDArray[np.uint8],
    left_start: int,
    left_stop: int,
    right: NDArray[np.uint8],
    right_start: int,
    right_stop: int,
    length: int,
) -> bool:
    """Whether two runs of `length` bytes are equal. A hash is never trusted: tables compare whole keys with this."""
    i = 0
    while length - i > 8:
        if load64(left, left_start + i) != load64(right, right_start + i):
            return False
        i += 8
    rest = length - i
    return rest == 0 or load_part(left, left_start + i, rest, left_stop) == load_part(right, right_start + i, rest, right_stop)


@kernel_part
def _rotate(value: np.uint64, bits: int) -> Any:
    return (value << uint64(bits)) | (value >> uint64(64 - bits))


@kernel_part
def _round(accumulator: np.uint64, word: np.uint64) -> Any:
    return _rotate(accumulator + word * PRIME2, 31) * PRIME1


@kernel_part
def _merge(h: np.uint64, accumulator: np.uint64) -> Any:
    return (h ^ _round(uint64(0), accumulator)) * PRIME1 + PRIME4


@kernel
def _hash_documents(data: NDArray[np.uint8], starts: NDArray[np.int64], out: NDArray[np.uint64]) -> None:
    """XXH64 with seed 0 of every `data[starts[d] : starts[d + 1]]`."""
    for d in range(len(out)):
        i, end = starts[d], starts[d + 1]
        h = PRIME5
        if end - i >= 32:
            a, b, c, e = PRIME1 + PRIME2, PRIME2, uint64(0), uint64(0) - PRIME1
            while end - i >= 32:
                a = _round(a, load64(data, i))
                b = _round(b, load64(data, i + 8))
                c = _round(c, load64(data, i + 16))
                e = _round(e, load64(data, i + 24))
                i += 32
            h = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(e, 18)
            h = _merge(_merge(_merge(_merge(h, a), b), c), e)
        h += uint64(end - starts[d])
        while end - i >= 8:
            h = _rotate(h ^ _round(uint64(0), load64(data, i)), 27) * PRIME1 + PRIME4
            i += 8
        if end - i >= 4:
            h = _rotate(h ^ (load_part(data, i, 4, end) * PRIME1), 23) * PRIME2 + PRIME3
            i += 4
        while i < end:
            h = _rotate(h ^ (uint64(data[i]) * PRIME5), 11) * PRIME1
            i += 1
        h = (h ^ (h >> uint64(33))) * PRIME2
        h = (h ^ (h >> uint64(29))) * PRIME3
        out[d] = h ^ (h >> uint64(32))


def column_bytes(texts: pa.LargeStringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A text column as views: all its bytes, and the (n + 1,) offsets of its documents in them.

    Raises:
        ValueError: if the column holds nulls or is not a `large_string` array.
    """
    if not isinstance(texts, pa.LargeStringArray):
        raise ValueError(
            f"texts must be a pyarrow LargeStringArray, got {type(texts).__name__}: use pa.array(texts, pa.large_string())"
        )
    if texts.null_count:
        raise ValueError(f"texts must not hold nulls, got {texts.null_count:,} of {len(texts):,}: drop them first")
    if not len(texts):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, values = texts.buffers()
    starts = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(values, np.uint8) if values is not None and values.size else np.empty(0, np.uint8)
    return data[starts[0] : starts[-1]], starts - starts[0]


def document_hashes(texts: pa.LargeStringArray) -> NDArray[np.uint64]:
    """A stable hash of each document's bytes: XXH64 with seed 0, (n,) uint64.

    Held-out documents and the self-check's sample are chosen by it, so it may never change.

    Raises:
        ValueError: if the column holds nulls or is not a `large_string` array.

    Source: xxHash specification, XXH64.
    """
    data, starts = column_bytes(texts)
    out = np.empty(len(texts), np.uint64)
    _hash_documents(data, starts, out)
    return out
