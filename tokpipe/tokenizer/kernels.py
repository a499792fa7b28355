"""The fast path's kernels: documents to ids in one pass over the bytes.

`encode_documents` takes the text in chunks. For each it finds the cuts, hashes the units between them and asks for their table
entries ahead of time, then copies each unit's ids into the output: from the warm table, else from the worker's own, else by
merging the unit and remembering it. A unit that the merge kernel leaves to SentencePiece becomes a hole: its place is noted, and
`fill_holes` puts the ids in afterwards.

Nothing is read at or after the end of the text, whatever follows it in memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import int64, types, uint64
from numba.extending import intrinsic
from numpy.typing import NDArray

from tokpipe.tokenizer.classes import INSIDE
from tokpipe.tokenizer.cuts import Cuts
from tokpipe.tokenizer.jit import kernel, kernel_part
from tokpipe.tokenizer.merge import MAX_SYMBOLS, Merges, merge_unit
from tokpipe.tokenizer.unit_table import INLINE_IDS, UnitTable, add_unit, find_unit, unit_key

CHUNK_BYTES = 1024
MAX_HOLES = 1 << 14
# Where the kernel stands when it stops for want of room for holes, so that it can go on.
DOCUMENT, IN_DOCUMENT, UNIT_START, POSITION, PREVIOUS_CLASS, NUM_IDS, NUM_HOLES = range(7)
STATE_SIZE = 7
_ID_MASK = np.uint64((1 << 21) - 1)


class Scratch(NamedTuple):
    """Work space of one encoder; a named tuple because Numba takes it as one argument."""

    starts: NDArray[np.int64]
    """(CHUNK_BYTES + 2,) where the units of a chunk start."""
    words: NDArray[np.uint64]
    """(CHUNK_BYTES + 2, 3) the units' keys and hashes."""
    unit_ids: NDArray[np.int32]
    """(4 * MAX_SYMBOLS + 8,) the ids of one new unit."""
    holes: NDArray[np.int64]
    """(MAX_HOLES, 4) of what SentencePiece must encode: position in the ids, document, start and length in the text."""
    state: NDArray[np.int64]
    """(STATE_SIZE,) where the kernel stands."""


def new_scratch() -> Scratch:
    """Work space for one encoder."""
    return Scratch(
        np.empty(CHUNK_BYTES + 2, np.int64),
        np.empty((CHUNK_BYTES + 2, 3), np.uint64),
        np.empty(4 * MAX_SYMBOLS + 8, np.int32),
        np.empty((MAX_HOLES, 4), np.int64),
        np.zeros(STATE_SIZE, np.int64),
    )


def _prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of `array[index]` (an array of uint64 with rows of four) before it is needed."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        offset = builder.mul(args[1], ir.IntType(64)(4))
        pointer = builder.bitcast(builder.gep(data, [offset]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [pointer.type], ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        )
        builder.call(function, [pointer, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.none(array, types.int64), codegen


prefetch: Any = intrinsic(_prefetch)


@kernel_part
def _find_cuts(
    cuts: Cuts, data: NDArray[np.uint8], start: int, end: int, previous: int, starts: NDArray[np.int64], n: int
) -> Any:
    """Append to `starts[:n]` each position in [start, end) where a unit starts; returns the new n and the last class.

    The two bytes after each position are looked at; beyond the end of `data` they count as its last byte.
    """
    rows, columns, safe, last = cuts.rows, cuts.columns, cuts.safe, data.shape[0] - 1
    first, second = int64(data[start]), int64(data[min(start + 1, last)])
    safe_end = min(end, last - 1)
    for i in range(start, end):
        third = int64(data[i + 2]) if i < safe_end else int64(data[last])
        cls = int64(columns[int64(rows[first << 8 | second]) << 8 | third])
        starts[n] = i
        n += int64(safe[previous << 4 | cls])
        previous = previous if cls == INSIDE else cls
        first, second = second, third
    return n, previous


@kernel_part
def _emit(table: UnitTable, slot: int, out: NDArray[Any], w: int) -> Any:
    """Copy a unit's ids to `out[w:]`, which has room for three more; returns the new end."""
    packed = table.entries[slot, 3]
    out[w] = packed & _ID_MASK
    out[w + 1] = (packed >> uint64(21)) & _ID_MASK
    out[w + 2] = packed >> uint64(42)
    meta = table.entries[slot, 2]
    num_ids = int64((meta >> uint64(16)) & uint64(0xFFFF))
    if num_ids > INLINE_IDS:
        offset = int64(meta >> uint64(32))
        for i in range(INLINE_IDS, num_ids):
            out[w + i] = table.ids[offset + i]
    return w + num_ids


@kernel_part
def _encode_units(
    tables: tuple[UnitTable, UnitTable],
    merges: Merges,
    scratch: Scratch,
    data: NDArray[np.uint8],
    n: int,
    out: NDArray[Any],
    w: int,
) -> int:
    """Write the ids of the `n` units of a chunk to `out[w:]`; returns the new end."""
    warm, own = tables
    starts, words, stop = scratch.starts, scratch.words, data.shape[0]
    warm_mask, own_mask = uint64(warm.entries.shape[0] - 1), uint64(own.entries.shape[0] - 1)
    for k in range(n):
        a, b, h = unit_key(data, starts[k], starts[k + 1] - starts[k], stop)
        words[k, 0], words[k, 1], words[k, 2] = a, b, h
        prefetch(warm.entries, int64(h & warm_mask))
        prefetch(own.entries, int64(h & own_mask))
    for k in range(n):
        start, length, key = starts[k], starts[k + 1] - starts[k], (words[k, 0], words[k, 1], words[k, 2])
        slot = find_unit(warm, key, data, start, length, stop)
        if slot >= 0:
            w = _emit(warm, slot, out, w)
            continue
        slot = find_unit(own, key, data, start, length, stop)
        if slot < 0:
            num_ids = -1 if length > 4 * MAX_SYMBOLS else merge_unit(merges, data, start, length, scratch.unit_ids)
            if num_ids < 0:
                hole = scratch.state[NUM_HOLES]
                scratch.holes[hole, 0], scratch.holes[hole, 1] = w, scratch.state[DOCUMENT]
                scratch.holes[hole, 2], scratch.holes[hole, 3] = start, length
                scratch.state[NUM_HOLES] += 1
                continue
            slot = add_unit(own, key, data, start, length, stop, scratch.unit_ids, num_ids)
        w = _emit(own, slot, out, w)
    return w


@kernel
def encode_documents(
    data: NDArray[np.uint8],
    doc_starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    cuts: Cuts,
    merges: Merges,
    tables: tuple[UnitTable, UnitTable],
    scratch: Scratch,
    out: NDArray[Any],
    out_starts: NDArray[np.int64],
) -> bool:
    """Encode `data[doc_starts[d] : doc_starts[d + 1]]` for all documents, going on from `scratch.state`.

    `ends` are the ids put before and after each document, -1 for none; `tables` the warm one and the worker's own. `out` must
    hold one id for each byte of normalised text, two for each document and three more. Returns False if the room for holes ran
    out: take them, set NUM_HOLES to 0 and call again.
    """
    starts, state = scratch.starts, scratch.state
    w = state[NUM_IDS]
    for d in range(state[DOCUMENT], doc_starts.shape[0] - 1):
        end, state[DOCUMENT] = doc_starts[d + 1], d
        if state[IN_DOCUMENT]:
            unit_start, position, previous = state[UNIT_START], state[POSITION], state[PREVIOUS_CLASS]
            state[IN_DOCUMENT] = 0
        else:
            unit_start = position = doc_starts[d]
            previous = int64(INSIDE)
            out_starts[d] = w
            if ends[0] >= 0:
                out[w] = ends[0]
                w += 1
        while unit_start < end:
            if state[NUM_HOLES] + CHUNK_BYTES + 1 > MAX_HOLES:
                state[IN_DOCUMENT], state[UNIT_START], state[POSITION] = 1, unit_start, position
                state[PREVIOUS_CLASS], state[NUM_IDS] = previous, w
                return False
            chunk_end = min(end, position + CHUNK_BYTES)
            starts[0] = unit_start
            n, previous = _find_cuts(cuts, data, position, chunk_end, previous, starts, 1)
            position = chunk_end
            if position == end:
                starts[n] = end
                n += 1
            w = _encode_units(tables, merges, scratch, data, n - 1, out, w)
            unit_start = starts[n - 1]
        if ends[1] >= 0:
            out[w] = ends[1]
            w += 1
    out_starts[doc_starts.shape[0] - 1] = w
    state[DOCUMENT], state[NUM_IDS] = doc_starts.shape[0] - 1, w
    return True


@kernel
def fill_holes(
    ids: NDArray[Any],
    positions: NDArray[np.int64],
    filling: NDArray[np.int32],
    fill_starts: NDArray[np.int64],
    out: NDArray[Any],
) -> None:
    """Copy `ids` to `out` with `filling[fill_starts[h] : fill_starts[h + 1]]` put in before `ids[positions[h]]` (ascending)."""
    read, w = 0, 0
    for h in range(positions.shape[0]):
        while read < positions[h]:
            out[w] = ids[read]
            read, w = read + 1, w + 1
        for j in range(fill_starts[h], fill_starts[h + 1]):
            out[w] = filling[j]
            w += 1
    for j in range(read, ids.shape[0]):
        out[w + j - read] = ids[j]


@kernel
def add_virtual_spaces(
    data: NDArray[np.uint8], doc_starts: NDArray[np.int64], after: bool, out: NDArray[np.uint8], out_starts: NDArray[np.int64]
) -> None:
    """Copy the text with a space before (or after) every document that is not empty."""
    w = 0
    for d in range(doc_starts.shape[0] - 1):
        out_starts[d] = w
        start, stop = doc_starts[d], doc_starts[d + 1]
        if start == stop:
            continue
        if not after:
            out[w] = 0x20
            w += 1
        for i in range(start, stop):
            out[w + i - start] = data[i]
        w += stop - start
        if after:
            out[w] = 0x20
            w += 1
    out_starts[doc_starts.shape[0] - 1] = w
