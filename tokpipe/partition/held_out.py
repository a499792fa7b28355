"""HeldOutPlan: one finite pass over every held-out sample, the same for any number of ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokpipe.errors import PartitionError
from tokpipe.partition.checks import SourceTokens
from tokpipe.partition.lanes import num_samples
from tokpipe.partition.phases import Phase

Ints = NDArray[np.int64]

PADDING = -1
"""Sample number of the positions that fill up the last batch."""


class HeldOutPlan:
    """Deals the held-out samples out, source by source, G at a time; answers `locate` like a `PartitionPlan`."""

    def __init__(self, *, dataset_id: str, sources: Sequence[SourceTokens], phase: Phase) -> None:
        """Lay the pass out.

        Args:
            dataset_id: whose plan it is.
            sources: names and held-out tokens, in the dataset's order.
            phase: batch size and sequence length; if it has weights, the pass is over the sources with a positive one.

        Raises:
            PartitionError: if a weight names no source.
        """
        wanted = {source.name for source in sources} if phase.weights is None else {n for n, w in phase.weights if w > 0}
        unknown = sorted(wanted - {source.name for source in sources})
        if unknown:
            names = ", ".join(source.name for source in sources)
            raise PartitionError(f"weights name {', '.join(map(repr, unknown))}; the dataset's sources are {names}")
        self.dataset_id = dataset_id
        self.sources = tuple(sources)
        self.phases = (phase,)
        self.seed, self.order = 0, "sequential"
        samples = [num_samples(tokens, phase.seq_len) if name in wanted else 0 for name, tokens in sources]
        self._ends = np.cumsum(samples, dtype=np.int64)
        self.too_small = tuple(s for s, count in zip(sources, samples, strict=True) if s.name in wanted and not count)
        """Sources that are part of the pass and do not hold one sample."""

    @property
    def num_samples(self) -> int:
        """Samples of the pass, padding apart."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def num_steps(self) -> int:
        """Global batches of the pass, the last one filled up."""
        return -(-self.num_samples // self.phases[0].global_batch_size)

    @property
    def plan_hash(self) -> str:
        """Hash of the arithmetic, never that of a training plan."""
        return hashlib.sha256(b"held-out 1").hexdigest()[:32]

    def phase_at(self, step: int) -> Phase:
        """The only phase there is."""
        return self.phases[0]

    def locate(self, steps: Ints, positions: Ints) -> tuple[Ints, Ints]:
        """(n,) int64 source and (n,) int64 sample at the given steps and positions; the sample is `PADDING` behind the last."""
        index = steps * self.phases[0].global_batch_size + positions
        source = np.searchsorted(self._ends, index, side="right").astype(np.int64)
        padding = source == len(self._ends)
        source[padding] = 0
        begins = np.concatenate(([0], self._ends[:-1])) if len(self._ends) else np.zeros(1, dtype=np.int64)
        sample: Ints = np.where(padding, PADDING, index - begins[source])
        return source, sample
