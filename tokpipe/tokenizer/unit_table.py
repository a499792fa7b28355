"""The table from units to their ids: open addressing, whole keys compared, bounded, emptied when full.

One entry is four 64-bit words, so a lookup of a short unit touches one cache line:

    word 0, 1  the unit's bytes, zero-padded (up to 16 bytes); or its hash and its offset in `keys` (longer)
    word 2     length in bytes (bits 0-15, never 0), number of ids (16-31), offset in `ids` (32-63)
    word 3     the first three ids, 21 bits each

A table is filled by one process. One that is mapped from a file (the warm start) is only ever read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import int64, uint64
from numpy.typing import NDArray

from tokpipe.tokenizer.hashing import HASH_MULTIPLIER, HASH_SEED, fold_multiply, hash_bytes, load64, load_part, same_bytes
from tokpipe.tokenizer.jit import kernel, kernel_part

INLINE_BYTES = 16
INLINE_IDS = 3
USED, KEYS_USED, IDS_USED, TIMES_EMPTIED = range(4)

# Masks for the low 0 to 8 bytes of a word, one row for each word of a key: _MASKS[w, length].
_MASKS = np.array(
    [[(1 << (8 * min(max(length - 8 * w, 0), 8))) - 1 for length in range(INLINE_BYTES + 1)] for w in range(2)], np.uint64
)


class UnitTable(NamedTuple):
    """The arrays of one table; a named tuple because Numba takes it as one argument."""

    entries: NDArray[np.uint64]
    """(capacity, 4), capacity a power of two; see the module's docstring."""
    keys: NDArray[np.uint8]
    """The bytes of units longer than 16 bytes, one after the other."""
    ids: NDArray[np.int32]
    """The ids of every unit, one unit after the other."""
    counters: NDArray[np.int64]
    """(4,) entries, bytes of keys and ids in use, and how often the table was emptied."""


def new_table(capacity: int) -> UnitTable:
    """An empty table; `capacity` must be a power of two. At most five eighths of it are filled before it is emptied."""
    if capacity < 16 or capacity & (capacity - 1):
        raise ValueError(f"capacity must be a power of two from 16 on, got {capacity}")
    return UnitTable(
        np.zeros((capacity, 4), np.uint64),
        np.zeros(16 * capacity, np.uint8),
        np.zeros(3 * capacity, np.int32),
        np.zeros(4, np.int64),
    )


@kernel_part
def _short_hash(a: Any, b: Any, length: int) -> Any:
    return fold_multiply(a ^ HASH_SEED, b ^ (HASH_MULTIPLIER + uint64(length)))


@kernel_part
def unit_key(data: NDArray[np.uint8], start: int, length: int, stop: int) -> tuple[Any, Any, Any]:
    """The first two words of a unit's entry, and its hash; the second word of a long unit is 0."""
    if length <= INLINE_BYTES:
        if start + INLINE_BYTES <= stop:
            a = load64(data, start) & _MASKS[0, length]
            b = load64(data, start + 8) & _MASKS[1, length]
        elif length <= 8:
            a, b = load_part(data, start, length, stop), uint64(0)
        else:
            a, b = load64(data, start), load_part(data, start + 8, length - 8, stop)
        return a, b, _short_hash(a, b, length)
    h = hash_bytes(data, start, length, stop)
    return h, uint64(0), h


@kernel_part
def find_unit(table: UnitTable, key: tuple[Any, Any, Any], data: NDArray[np.uint8], start: int, length: int, stop: int) -> Any:
    """The entry of a unit, or `-1 - slot` with the free slot where it belongs."""
    a, b, h = key
    mask = uint64(table.entries.shape[0] - 1)
    slot = h & mask
    while True:
        meta = table.entries[slot, 2]
        if meta == uint64(0):
            return -1 - int64(slot)
        if table.entries[slot, 0] == a and int64(meta & uint64(0xFFFF)) == length:
            if length <= INLINE_BYTES:
                if table.entries[slot, 1] == b:
                    return int64(slot)
            else:
                offset = int64(table.entries[slot, 1])
                if same_bytes(table.keys, offset, table.keys.shape[0], data, start, stop, length):
                    return int64(slot)
        slot = (slot + uint64(1)) & mask


@kernel_part
def has_room(table: UnitTable, key_bytes: int, num_ids: int) -> Any:
    """Whether one more unit fits within the table's bounds."""
    counters = table.counters
    return (
        8 * (counters[USED] + 1) <= 5 * table.entries.shape[0]
        and counters[KEYS_USED] + key_bytes <= table.keys.shape[0]
        and counters[IDS_USED] + num_ids <= table.ids.shape[0]
    )


@kernel
def clear_table(table: UnitTable) -> None:
    """Forget every unit; the memory stays."""
    for slot in range(table.entries.shape[0]):
        table.entries[slot, 2] = uint64(0)
    for counter in range(TIMES_EMPTIED):
        table.counters[counter] = 0
    table.counters[TIMES_EMPTIED] += 1


@kernel
def add_unit(
    table: UnitTable,
    key: tuple[Any, Any, Any],
    data: NDArray[np.uint8],
    start: int,
    length: int,
    stop: int,
    unit_ids: NDArray[np.int32],
    num_ids: int,
) -> Any:
    """Store a unit that is not in the table, emptying the table first if it is full; returns its slot.

    Its length and number of ids must be below 2**16, its ids below 2**21, and an empty table must have room for it.
    """
    if not has_room(table, length, num_ids):
        clear_table(table)
    slot = -1 - find_unit(table, key, data, start, length, stop)
    a, b, _ = key
    counters = table.counters
    if length > INLINE_BYTES:
        b = uint64(counters[KEYS_USED])
        for i in range(length):
            table.keys[counters[KEYS_USED] + i] = data[start + i]
        counters[KEYS_USED] += length
    packed = uint64(0)
    for i in range(num_ids):
        table.ids[counters[IDS_USED] + i] = unit_ids[i]
        if i < INLINE_IDS:
            packed |= uint64(unit_ids[i]) << uint64(21 * i)
    table.entries[slot, 0], table.entries[slot, 1] = a, b
    table.entries[slot, 2] = uint64(length) | uint64(num_ids) << uint64(16) | uint64(counters[IDS_USED]) << uint64(32)
    table.entries[slot, 3] = packed
    counters[IDS_USED] += num_ids
    counters[USED] += 1
    return slot


@kernel
def add_units(
    table: UnitTable, data: NDArray[np.uint8], starts: NDArray[np.int64], ids: NDArray[np.int32], id_starts: NDArray[np.int64]
) -> None:
    """Store units that something else encoded: unit `u` is `data[starts[u] : starts[u + 1]]`, its ids alike."""
    for u in range(starts.shape[0] - 1):
        start, length, num_ids = starts[u], starts[u + 1] - starts[u], id_starts[u + 1] - id_starts[u]
        key = unit_key(data, start, length, data.shape[0])
        if find_unit(table, key, data, start, length, data.shape[0]) < 0:
            add_unit(table, key, data, start, length, data.shape[0], ids[id_starts[u] : id_starts[u + 1]], num_ids)


@kernel
def _place_entries(entries: NDArray[np.uint64], out: NDArray[np.uint64]) -> None:
    """Enter whole entries into an empty table's `out`, in order."""
    mask = uint64(out.shape[0] - 1)
    for k in range(entries.shape[0]):
        length = entries[k, 2] & uint64(0xFFFF)
        h = entries[k, 0]
        if length <= uint64(INLINE_BYTES):
            h = _short_hash(entries[k, 0], entries[k, 1], int64(length))
        slot = h & mask
        while out[slot, 2] != uint64(0):
            slot = (slot + uint64(1)) & mask
        for word in range(4):
            out[slot, word] = entries[k, word]


def compact_entries(table: UnitTable) -> NDArray[np.uint64]:
    """The table's entries in the smallest table that holds them, those that came first nearest to where they are sought."""
    used = table.entries[table.entries[:, 2] != 0]
    used = used[np.argsort(used[:, 2] >> np.uint64(32), kind="stable")]
    capacity = 16
    while 8 * len(used) > 5 * capacity:
        capacity *= 2
    out = np.zeros((capacity, 4), np.uint64)
    _place_entries(used, out)
    return out
