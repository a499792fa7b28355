"""The fast path: columns of text to ids through safe cuts and a table of units, equal to SentencePiece id for id."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from tokpipe.tokenizer.cuts import derive_cuts
from tokpipe.tokenizer.kernels import NUM_HOLES, NUM_IDS, add_virtual_spaces, encode_documents, fill_holes, new_scratch
from tokpipe.tokenizer.merge import MAX_SYMBOLS, build_merges
from tokpipe.tokenizer.unit_table import INLINE_IDS, UnitTable, add_units, new_table
from tokpipe.tokenizer.vocabulary import SPACE_MARK, Vocabulary, without_dummy_prefix

DEFAULT_CAPACITY = 1 << 20
"""Entries of a worker's own table: 32 MB, and 28 MB for long keys and ids, of which only what is used is touched."""


_KEEP_BYTES = 4 * MAX_SYMBOLS
_MIN_CAPACITY = 4 * MAX_SYMBOLS


class UnitEncoder:
    """Encodes columns by units. Holds tables and work space, so one for each thread."""

    def __init__(
        self,
        model_bytes: bytes,
        vocabulary: Vocabulary,
        rules: dict[str, str],
        *,
        capacity: int = DEFAULT_CAPACITY,
        virtual_spaces: bool = True,
    ) -> None:
        """Derive cuts and merges of a model for which `cut_obstacle` is None; `capacity` bounds the table of units.

        Without `virtual_spaces`, texts are taken as parts of documents: a dummy prefix is left out.

        Raises:
            ValueError: if `capacity` is not a power of two from 1,024 on.
        """
        if capacity < _MIN_CAPACITY:
            raise ValueError(f"capacity must be at least {_MIN_CAPACITY:,}, got {capacity:,}")
        self._vocabulary = vocabulary
        self._virtual_spaces = virtual_spaces and vocabulary.add_dummy_prefix
        self._cuts = derive_cuts(vocabulary, rules)
        self._scratch = new_scratch()
        self._own, self._warm = new_table(capacity), new_table(16)
        # What the kernel leaves over is part of a document, so no virtual space may be put around it again.
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=without_dummy_prefix(model_bytes))
        self._merges = build_merges(vocabulary, rules)
        # Ids for each byte of text, at most: an unknown space mark is three byte pieces; an image may be longer than its
        # character.
        images = ((char, image.replace(" ", SPACE_MARK)) for char, image in rules.items())
        growth = [len(image.encode()) / len(char.encode()) for char, image in images]
        self._growth = max(1.0 if 0 <= self._merges.char_symbol[ord(SPACE_MARK)] < len(vocabulary.pieces) else 3.0, *growth, 1.0)

    @property
    def own_table(self) -> UnitTable:
        """The units met so far that the warm table lacks."""
        return self._own

    def use_warm_table(self, table: UnitTable) -> None:
        """Look units up in `table` first; it is never written to."""
        self._warm = table

    def encode(
        self, data: NDArray[np.uint8], doc_starts: NDArray[np.int64], dtype: str, *, before: int | None, after: int | None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Encode `data[doc_starts[d] : doc_starts[d + 1]]` for all d, with the ids `before` and `after` around each.

        Returns ids of `dtype` and their (num_documents + 1,) int64 offsets.
        """
        if self._virtual_spaces:
            data, doc_starts = self._with_virtual_spaces(data, doc_starts)
        num_docs = len(doc_starts) - 1
        out = np.empty(math.ceil(len(data) * self._growth) + 2 * num_docs + INLINE_IDS, dtype)
        offsets = np.zeros(num_docs + 1, np.int64)
        ends = np.array([-1 if end is None else end for end in (before, after)], np.int64)
        data = data.view()
        data.flags.writeable = False  # one type for the kernel, whoever owns the text
        scratch, holes, finished = self._scratch, [], False
        scratch.state[:] = 0
        while not finished:
            tables = (self._warm, self._own)
            finished = encode_documents(data, doc_starts, ends, self._cuts, self._merges, tables, scratch, out, offsets)
            holes.append(scratch.holes[: scratch.state[NUM_HOLES]].copy())
            scratch.state[NUM_HOLES] = 0
        ids = out[: scratch.state[NUM_IDS]]
        if any(map(len, holes)):
            return self._fill(data, ids, offsets, np.concatenate(holes))
        return ids, offsets

    def _with_virtual_spaces(
        self, data: NDArray[np.uint8], doc_starts: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """A copy of the text with the space that the model puts before (or after) every document."""
        spaced, starts = np.empty(len(data) + len(doc_starts) - 1, np.uint8), np.empty(len(doc_starts), np.int64)
        data = data.view()
        data.flags.writeable = False
        add_virtual_spaces(data, doc_starts, self._vocabulary.space_as_suffix, spaced, starts)
        return spaced[: starts[-1]], starts

    def _fill(
        self, data: NDArray[np.uint8], ids: NDArray[Any], offsets: NDArray[np.int64], holes: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Let SentencePiece encode what the kernel left over, and put the ids in their places."""
        texts = [data[start : start + length].tobytes() for _, _, start, length in holes.tolist()]
        new = list(dict.fromkeys(texts))
        encoded = dict(zip(new, (np.array(x, np.int32) for x in self._processor.encode([t.decode() for t in new])), strict=True))
        self._remember({text: x for text, x in encoded.items() if len(text) <= _KEEP_BYTES and len(x) <= _KEEP_BYTES})
        fillings = [encoded[text] for text in texts]
        lengths = np.array([len(filling) for filling in fillings], np.int64)
        out = np.empty(len(ids) + int(lengths.sum()), ids.dtype)
        fill_holes(ids, holes[:, 0].copy(), np.concatenate(fillings), np.concatenate(([0], np.cumsum(lengths))), out)
        added = np.bincount(holes[:, 1], lengths, len(offsets) - 1).astype(np.int64)
        offsets[1:] += np.cumsum(added)
        return out, offsets

    def _remember(self, encoded: dict[bytes, NDArray[np.int32]]) -> None:
        """Keep short units that SentencePiece encoded in the table."""
        if not encoded:
            return
        starts = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
        id_starts = np.cumsum([0, *map(len, encoded.values())]).astype(np.int64)
        keys = np.frombuffer(b"".join(encoded), np.uint8)
        add_units(self._own, keys, starts, np.concatenate(list(encoded.values())), id_starts)
