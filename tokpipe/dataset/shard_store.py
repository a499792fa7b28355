"""ShardStore: token windows out of memory-mapped shards, with a cap on open files and on resident memory."""

from __future__ import annotations

import mmap
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokpipe.errors import ShardFormatError
from tokpipe.partition import Piece, TokenSpace
from tokpipe.shards import Shard, TokenDtype, token_dtype

MAX_OPEN_SHARDS = 400
"""Each open shard holds one file handle for its ids and one more if documents are asked for; the usual limit is 1,024."""
RESIDENT_BYTES = 64 << 20
"""After so many bytes read, the pages behind are given back; they stay in the page cache."""


class ShardStore:
    """Reads windows of the row of tokens that a `TokenSpace` describes. Shards are opened where they are first read.

    Pickles as paths. One lock: threads take turns.
    """

    def __init__(self, folder: Path, space: TokenSpace, dtype: TokenDtype, max_open_shards: int = MAX_OPEN_SHARDS) -> None:
        self.folder, self.space, self.dtype = folder, space, dtype
        self.max_open_shards = max_open_shards
        self._reset()

    def _reset(self) -> None:
        self._open: OrderedDict[int, tuple[NDArray[Any], Shard]] = OrderedDict()
        self._bytes_since_drop = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return (ShardStore, (self.folder, self.space, self.dtype, self.max_open_shards))

    @property
    def num_open(self) -> int:
        """Shards that are mapped now."""
        return len(self._open)

    def read(self, shards: Sequence[int], starts: Sequence[int], width: int) -> NDArray[Any]:
        """Copy windows of tokens.

        Args:
            shards: shard of each window's first token; negative gives a window of zeros.
            starts: offset of that token in the shard.
            width: tokens per window; it may run on into the shards behind.

        Returns:
            (len(shards), width) uint16 or int32.

        Raises:
            MissingShardError, ShardFormatError: if a shard cannot be opened, or is not what the manifest says.
        """
        out = np.empty((len(shards), width), dtype=token_dtype(self.dtype))
        with self._lock:
            for row, shard in enumerate(shards):
                start = starts[row]
                if shard < 0:
                    out[row] = 0
                    continue
                tokens = self._tokens(shard)
                if start + width <= tokens.size:
                    out[row] = tokens[start : start + width]
                else:
                    self._read_across(out[row], shard, start)
            self._bytes_since_drop += out.nbytes
            if self._bytes_since_drop > RESIDENT_BYTES:
                self._drop_pages()
        return out

    def expect(self, pieces: Sequence[Piece]) -> None:
        """Have the kernel read ahead what comes: long reads, where the order inside a block would give it short ones.

        Does nothing if that would open more shards than may be open.
        """
        if len({piece.shard for piece in pieces}) > self.max_open_shards:
            return
        for piece in pieces:
            shard = self.open(piece.shard)
            shard.advise(mmap.MADV_WILLNEED, piece.start, min(piece.stop, shard.num_tokens))

    def document_starts(self, shard: int, start: int, width: int) -> NDArray[np.int64]:
        """Where documents start in a window, relative to it; (n,) int64, ascending, in [0, width).

        Every shard begins with a document, so a border between shards is one between documents.
        """
        with self._lock:
            self._tokens(shard)
            if start + width <= self.space.shards[shard].num_tokens:
                return self._open[shard][1].document_starts(start, start + width) - start
            found, offset = [], 0
            first = int(self.space.starts[shard]) + start
            for piece in self.space.pieces(first, first + width):
                self._tokens(piece.shard)
                found.append(self._open[piece.shard][1].document_starts(piece.start, piece.stop) - piece.start + offset)
                offset += piece.stop - piece.start
        return np.concatenate(found)

    def open(self, number: int) -> Shard:
        """A shard of `space.shards`, opened if need be."""
        with self._lock:
            self._tokens(number)
            return self._open[number][1]

    def _read_across(self, row: NDArray[Any], shard: int, start: int) -> None:
        first, done = int(self.space.starts[shard]) + start, 0
        for piece in self.space.pieces(first, first + row.size):
            length = piece.stop - piece.start
            row[done : done + length] = self._tokens(piece.shard)[piece.start : piece.stop]
            done += length

    def _tokens(self, number: int) -> NDArray[Any]:
        """The ids of a shard; opens it if need be and closes the one not used for longest."""
        try:
            self._open.move_to_end(number)
        except KeyError:
            entry = self.space.shards[number]
            shard = Shard.open(self.folder / entry.name, expect=entry)
            if shard.dtype != self.dtype:
                raise ShardFormatError(f"{shard.prefix}: holds {shard.dtype}, the manifest says {self.dtype}") from None
            self._open[number] = (shard.tokens, shard)
            if len(self._open) > self.max_open_shards:
                self._open.popitem(last=False)
        return self._open[number][0]

    def _drop_pages(self) -> None:
        """Give back what has been read; what comes next in the same pages is mapped again at little cost."""
        for _, shard in self._open.values():
            shard.advise(mmap.MADV_DONTNEED)
        self._bytes_since_drop = 0
