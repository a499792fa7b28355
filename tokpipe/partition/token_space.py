"""TokenSpace: where in which shard a token of a source lies.

The shards of a dataset are put in one row, source by source; a source, and all sources joined, are ranges of that row. One
binary search over a few thousand shard starts finds any token of a trillion.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokpipe.shards import Manifest, ShardEntry

Ints = NDArray[np.int64]


class Piece(NamedTuple):
    """Tokens [start, stop) of one shard."""

    shard: int
    start: int
    stop: int


class TokenSpace:
    """The training shards, or the held-out ones, of a dataset in one row."""

    def __init__(self, manifest: Manifest, *, held_out: bool) -> None:
        chosen = [shard for shard in manifest.shards if shard.held_out == held_out]
        rank = {name: number for number, name in enumerate(manifest.sources)}
        self.shards: tuple[ShardEntry, ...] = tuple(sorted(chosen, key=lambda shard: rank[shard.source]))
        """Source by source, and in the manifest's order within a source."""
        self.starts: Ints = np.zeros(len(self.shards) + 1, dtype=np.int64)
        """(num_shards + 1,) first token of each shard in the row; the last entry is the number of tokens."""
        np.cumsum([shard.num_tokens for shard in self.shards], out=self.starts[1:], dtype=np.int64)
        totals = np.zeros(len(manifest.sources) + 1, dtype=np.int64)
        for shard in self.shards:
            totals[rank[shard.source] + 1] += shard.num_tokens
        self.group_starts: Ints = np.append(np.cumsum(totals)[:-1], 0)
        """(num_sources + 1,) first token of each source in the row, and 0 for all of them joined."""

    def find(self, tokens: Ints) -> tuple[Ints, Ints]:
        """(n,) int64 shard and (n,) int64 offset in that shard of tokens of the row."""
        shard: Ints = np.searchsorted(self.starts, tokens, side="right") - 1
        return shard, tokens - self.starts[shard]

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """What tokens [start, stop) of the row are in each shard."""
        found = []
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        for shard in range(first, len(self.shards)):
            begin, end = int(self.starts[shard]), int(self.starts[shard + 1])
            if begin >= stop:
                break
            found.append(Piece(shard, max(start, begin) - begin, min(stop, end) - begin))
        return found
