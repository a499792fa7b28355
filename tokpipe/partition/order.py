"""The order of samples inside a lane: a seeded permutation with random access and no memory.

`permute` is a Feistel network over the mixed-radix pair (index // b, index % b) with a * b just above the size, walked until it
lands inside; its rounds add instead of xor, so that a and b need not be powers of two and almost nothing has to walk. Every
function works on whole arrays at once: a few hundred numpy calls for a thousand samples, whatever the size of the lane.

The default order permutes blocks of about 1 MiB and the samples inside each block: reads stay long, and lanes do not drift
through sorted shards in step. Neighbouring samples never leave their lane.

Keys are integers mixed from (seed, source, epoch, lane): never `hash()`, never how long one trains.

Source: cycle walking and Feistel networks over Z_a x Z_b: Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Order = Literal["blocks", "sequential", "full"]
ORDERS: tuple[Order, ...] = ("blocks", "sequential", "full")

BLOCK_TOKENS = 1 << 19
"""Tokens in a block of the default order: 1 MiB of uint16."""
MIN_BLOCKS_PER_LANE = 16
"""Short lanes get smaller blocks, so that what a lane reads next stays uncorrelated with what it has just read."""

_ROUNDS = 6
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUND_STEP = np.uint64(0xD6E8FEB86659FD93)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_ROUND_KEYS = np.arange(_ROUNDS, dtype=np.uint64) * _ROUND_STEP
_U27, _U29, _U30, _U31, _U32 = (np.uint64(bits) for bits in (27, 29, 30, 31, 32))

UInts = NDArray[np.uint64]
Ints = NDArray[np.int64]


def mix(value: UInts) -> UInts:
    """Spread the bits of 64-bit integers; a bijection.

    Source: the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    value = value + _GOLDEN
    value = (value ^ (value >> _U30)) * _MULTIPLY_1
    value = (value ^ (value >> _U27)) * _MULTIPLY_2
    return value ^ (value >> _U31)


def lane_key(seed: int, source: Ints, epoch: Ints, lane: Ints) -> UInts:
    """Key of a lane's order: `mix(mix(mix(mix(seed) ^ source) ^ epoch) ^ lane)`.

    Args:
        seed: any integer; its lowest 64 bits count.
        source, epoch, lane: arrays of one shape.

    Returns:
        uint64 of that shape.
    """
    key = mix(np.array([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64))
    for part in (source, epoch, lane):
        key = mix(key ^ part.astype(np.uint64))
    return key


def permute(index: Ints, size: Ints, key: UInts) -> Ints:
    """Where each index goes in the permutation of range(size) that its key selects.

    Args:
        index: (n,) int64, 0 <= index < size.
        size: (n,) int64, at least 1 and below 2**62.
        key: (n,) uint64.

    Returns:
        (n,) int64; for one size and key, a bijection of range(size).

    Example:
        >>> permute(np.arange(5), np.full(5, 5), np.full(5, 42, np.uint64)).tolist()
        [2, 1, 4, 3, 0]
    """
    return _walk(index, size, key, forward=True)


def unpermute(index: Ints, size: Ints, key: UInts) -> Ints:
    """The inverse of `permute`, with the same arguments."""
    return _walk(index, size, key, forward=False)


def lane_order(order: Order, position: Ints, length: Ints, block: Ints, key: UInts) -> Ints:
    """Which of a lane's samples is read at each position of its epoch.

    In "blocks" order the lane is cut into blocks of `block` samples, the last one shorter; the blocks, the short one among them,
    come in a permuted order, and so do the samples inside each.

    Args:
        order: "blocks", "sequential" or "full" (one permutation of the whole lane).
        position: (n,) int64, 0 <= position < length.
        length: (n,) int64, samples in the lane.
        block: (n,) int64, samples in a block, at least 1.
        key: (n,) uint64 from `lane_key`.

    Returns:
        (n,) int64; for one lane and epoch a bijection of range(length).
    """
    if order == "sequential":
        return position
    if order == "full":
        return permute(position, length, key)
    num_full, rest = np.divmod(length, block)
    has_short = rest > 0
    num_blocks = num_full + has_short
    short_start = length.copy()  # in reading order; without a short block nothing comes after it
    if has_short.any():
        short_start = np.where(has_short, unpermute(np.minimum(num_full, num_blocks - 1), num_blocks, key) * block, length)
    # Positions behind the short block move up, as if it were a full one: from there on, it is all multiples of `block`.
    padded = position + np.where(position >= short_start + rest, block - rest, 0)
    place, offset = np.divmod(padded, block)
    which = permute(place, num_blocks, key)
    inside = permute(offset, np.where(which == num_full, rest, block), mix(key ^ (which.astype(np.uint64) + _ROUND_STEP)))
    moved: Ints = which * block + inside
    return moved


def block_samples(lane_length: int, seq_len: int, block_tokens: int = BLOCK_TOKENS) -> int:
    """Samples in a block: about `block_tokens`, less if the lane would have fewer than `MIN_BLOCKS_PER_LANE` blocks."""
    return max(1, min(block_tokens // seq_len, lane_length // MIN_BLOCKS_PER_LANE))


def _walk(index: Ints, size: Ints, key: UInts, *, forward: bool) -> Ints:
    """Apply the network, and again to whatever landed in [size, a * b)."""
    limit: UInts = size.astype(np.uint64)
    # Any a is right as long as a * b >= size; near the square root the overhang that has to walk is smallest.
    a: UInts = np.ceil(np.sqrt(limit.astype(np.float64))).astype(np.uint64)
    b: UInts = ((limit + a - np.uint64(1)) // a).astype(np.uint64)
    out = _network(index.astype(np.uint64), a, b, key, forward=forward)
    outside = np.flatnonzero(out >= limit)
    while outside.size:
        out[outside] = _network(out[outside], a[outside], b[outside], key[outside], forward=forward)
        outside = outside[out[outside] >= limit[outside]]
    return out.astype(np.int64)


def _network(index: UInts, a: UInts, b: UInts, key: UInts, *, forward: bool) -> UInts:
    """A bijection of range(a * b): left in range(a) and right in range(b) take turns in being shifted by a hash of the other."""
    left, right = np.divmod(index, b)
    for number in range(_ROUNDS) if forward else reversed(range(_ROUNDS)):
        if number % 2 == 0:
            left = _shift(left, _hash_below(right, key, number, a), a, forward=forward)
        else:
            right = _shift(right, _hash_below(left, key, number, b), b, forward=forward)
    return left * b + right


def _hash_below(value: UInts, key: UInts, number: int, limit: UInts) -> UInts:
    """A hash in [0, limit) by multiply and shift: no division, limit below 2**32."""
    h = value * _GOLDEN
    h += key
    h += _ROUND_KEYS[number]
    h ^= h >> _U32
    h *= _MULTIPLY_1
    h ^= h >> _U29
    h *= _MULTIPLY_2
    h >>= _U32
    h *= limit
    h >>= _U32
    return h


def _shift(value: UInts, by: UInts, modulus: UInts, *, forward: bool) -> UInts:
    """(value + by) mod modulus, or (value - by) mod modulus; both operands are below the modulus."""
    moved = value + by if forward else value + (modulus - by)
    moved -= modulus * (moved >= modulus)
    return moved
