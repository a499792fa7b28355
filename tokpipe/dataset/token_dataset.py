"""TokenDataset: positions of the global batch to token windows. Map-style, over one data-parallel rank's samples.

Index i is sample `i % (G / D)` of this rank at step `i // (G / D)` (with phases, G changes along the way). So a plain
`torch.utils.data.DataLoader` without shuffling reads exactly what a `TokenLoader` reads.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import Dataset

from tokpipe.dataset.batch import IGNORED_LABEL, Batch
from tokpipe.dataset.documents import document_arrays, mask_starts
from tokpipe.dataset.positions import Chunk, Plan, locate_chunk, phase_runs
from tokpipe.dataset.replicas import data_rank
from tokpipe.dataset.shard_store import MAX_OPEN_SHARDS, ShardStore
from tokpipe.errors import PartitionError, StateMismatchError
from tokpipe.partition import (
    PADDING,
    HeldOutPlan,
    Order,
    PartitionPlan,
    Phase,
    SourceTokens,
    TokenSpace,
    check_staged,
    make_phases,
    rank_positions,
    source_tokens,
)
from tokpipe.shards import Manifest, Shard, read_manifest

_LOGGER = logging.getLogger(__name__)


class TokenDataset(Dataset[dict[str, Tensor]]):
    """Fixed-length training samples of one data-parallel rank, out of memory-mapped shards.

    Opening reads the manifest and nothing else; shards are mapped in the process that reads them. Pickles small.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        seq_len: int | None = None,
        global_batch_size: int | None = None,
        weights: Mapping[str, float] | None = None,
        phases: Sequence[Phase | Mapping[str, Any]] | None = None,
        dp_rank: int | None = None,
        dp_world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        held_out: bool = False,
        max_steps: int | None = None,
        seed: int = 0,
        order: Order = "blocks",
        documents: bool = False,
        mask_document_starts: bool = False,
        max_open_shards: int = MAX_OPEN_SHARDS,
    ) -> None:
        """Open a dataset for one rank.

        Args:
            path: folder with `dataset.json`, whole or staged for this rank.
            seq_len: tokens per sample.
            global_batch_size: samples per step over all ranks, a multiple of the number of ranks.
            weights: share of each source in every global batch; None reads all sources in their natural proportion, each
                sample once per epoch.
            phases: a schedule instead of the three above, also as dicts (`state["phases"]`).
            dp_rank, dp_world_size: this rank along the data axis, and how many there are.
            mesh: instead of these two; only its axis "dp" counts.
            held_out: one finite pass over the validation documents; the last batch is filled up with labels of -100.
            max_steps: where `len()` and the loader end; without it `len()` is one epoch, and needs `weights=None`.
            seed: decides the order, with epoch and lane.
            order: "blocks" (permuted blocks of about 1 MiB, permuted inside), "sequential" or "full".
            documents: also give `position_ids`, `document_ids`, `cu_seqlens` and `max_seqlen`.
            mask_document_starts: do not learn to predict a document's first token from the document before it.
            max_open_shards: shards mapped at once.

        Raises:
            ManifestError: if there is no dataset.
            PartitionError: if it cannot be laid out as asked; with the numbers and the nearest that can.
            StateMismatchError: if the folder was staged for another plan or other ranks.
        """
        self.path = Path(path)
        self.dp_rank, self.dp_world_size = data_rank(dp_rank, dp_world_size, mesh)
        self.max_steps = max_steps
        self.documents, self.mask_document_starts = documents, mask_document_starts
        manifest = read_manifest(self.path)
        asked = make_phases(seq_len=seq_len, global_batch_size=global_batch_size, weights=weights, phases=phases)
        self.notices: tuple[str, ...] = ()
        self.plan: Plan
        if held_out:
            self.plan = self._held_out_plan(manifest.dataset_id, source_tokens(manifest, held_out=True), asked)
        else:
            self.plan = PartitionPlan.of_manifest(
                manifest, phases=asked, seed=seed, order=order, batch_multiple=self.dp_world_size
            )
        self.max_open_shards = max_open_shards
        self._open_store(manifest)
        self.check_plan(self.plan)

    def __getstate__(self) -> dict[str, Any]:
        # A worker reads the manifest again: thousands of shards do not travel with every pickle.
        return {name: value for name, value in self.__dict__.items() if name not in ("space", "_store", "_chunk")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        manifest = read_manifest(self.path)
        if manifest.dataset_id != self.dataset_id:
            raise StateMismatchError(f"{self.path}: held dataset {self.dataset_id} and holds {manifest.dataset_id} now")
        self._open_store(manifest)

    def _open_store(self, manifest: Manifest) -> None:
        self.space = TokenSpace(manifest, held_out=self.held_out)
        self._store = ShardStore(self.path, self.space, manifest.dtype, self.max_open_shards)
        self._chunk: Chunk | None = None

    @property
    def held_out(self) -> bool:
        """Whether this is the finite pass over the held-out documents."""
        return isinstance(self.plan, HeldOutPlan)

    @property
    def dataset_id(self) -> str:
        """Which dataset this is."""
        return self.plan.dataset_id

    @property
    def num_steps(self) -> int | None:
        """Steps until the end: of the held-out pass, or `max_steps`; None if there is no end."""
        if isinstance(self.plan, HeldOutPlan):
            return self.plan.num_steps if self.max_steps is None else min(self.plan.num_steps, self.max_steps)
        return self.max_steps

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch over all sources, in the first phase.

        Raises:
            PartitionError: with weights, when each source has epochs of its own: see `plan.steps_per_epoch()`.
        """
        if isinstance(self.plan, HeldOutPlan):
            return self.plan.num_steps
        steps = self.plan.steps_per_epoch()
        if self.plan.phases[0].weights is not None:
            raise PartitionError(f"with weights every source has epochs of its own, of {steps} steps; see plan.epochs_at(step)")
        return steps["all sources"]

    def samples_per_rank(self, step: int) -> int:
        """G / D at a step.

        Raises:
            PartitionError: if D does not divide that step's G; a phase with another G is needed there.
        """
        size = self.plan.phase_at(step).global_batch_size
        return len(rank_positions(size, dp_rank=self.dp_rank, dp_world_size=self.dp_world_size))

    def __len__(self) -> int:
        """Samples of this rank: up to `max_steps`, of the held-out pass, or of one epoch.

        Raises:
            TypeError: if there is no end; give `max_steps`.
        """
        end = self._end()
        if end is None:
            raise TypeError("with weights or several phases a TokenDataset has no natural length: give max_steps")
        return sum(steps * self.samples_per_rank(start) for start, steps in phase_runs(self.plan, end) if steps)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """One sample, as a dict of (seq_len,) int64 tensors."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tensor]]:
        """Several samples at once; what torch's DataLoader calls for a batch."""
        where = [self._step_of(index) for index in indices]
        runs: list[dict[str, Tensor]] = []
        begin = 0
        for stop in range(1, len(where) + 1):
            step, first = where[begin]
            if stop == len(where) or where[stop] != (step, first + stop - begin):
                runs += self._rows(self.read(step, first, stop - begin))
                begin = stop
        return runs

    def read(self, step: int, first: int, count: int) -> Batch:
        """Samples [first, first + count) of this rank's share of a step.

        Steps may lie in any epoch; nothing is remembered from one call to the next but open shards.

        Raises:
            PartitionError: if the share has no such samples.
        """
        chunk = self.chunk_at(step, first, count)
        begin = (step - chunk.first_step) * chunk.per_rank + first
        shards, starts = chunk.shards[begin : begin + count], chunk.starts[begin : begin + count]
        tokens = self._store.read(shards, starts, chunk.seq_len + 1)
        inputs, labels = (np.empty((count, chunk.seq_len), dtype=np.int64) for _ in range(2))
        inputs[...] = tokens[:, :-1]
        labels[...] = tokens[:, 1:]
        if self.held_out:
            labels[[row for row, shard in enumerate(shards) if shard == PADDING]] = IGNORED_LABEL
        if not self.documents and not self.mask_document_starts:
            return Batch(input_ids=torch.from_numpy(inputs), labels=torch.from_numpy(labels), step=step, first=first)
        return self._with_documents(inputs, labels, shards, starts, step, first)

    def chunk_at(self, step: int, first: int, count: int) -> Chunk:
        """Where the samples of a step and of some that follow lie; the last answer is kept.

        Raises:
            PartitionError: if this rank's share of the step has no samples [first, first + count).
        """
        chunk = self._chunk
        if chunk is None or chunk.plan is not self.plan or not chunk.first_step <= step < chunk.stop_step:
            chunk = locate_chunk(self.plan, self.space, step, dp_rank=self.dp_rank, dp_world_size=self.dp_world_size)
            self._store.expect(chunk.coming)
            self._chunk = chunk
        if not 0 <= first < first + count <= chunk.per_rank:
            raise PartitionError(f"step {step}: samples {first} to {first + count} of the {chunk.per_rank} that a rank reads")
        return chunk

    def open_shard(self, number: int) -> Shard:
        """One of `space.shards`, mapped."""
        return self._store.open(number)

    def check_plan(self, plan: Plan, step: int | None = None) -> None:
        """Check that a plan suits this folder and rank, from `step` on; without a step, at least in its last phase.

        Raises:
            PartitionError: if D does not divide a batch.
            StateMismatchError: if the folder is staged for another plan.
        """
        coming = [phase for phase in plan.phases if step is None or plan.phase_at(step).start <= phase.start]
        for phase in coming[-1:] if step is None else coming:
            rank_positions(phase.global_batch_size, dp_rank=self.dp_rank, dp_world_size=self.dp_world_size)
        if isinstance(plan, PartitionPlan):
            check_staged(self.path, plan, dp_rank=self.dp_rank, dp_world_size=self.dp_world_size)

    def change_plan(self, plan: PartitionPlan) -> None:
        """Read by another plan from now on."""
        self.plan = plan

    def _held_out_plan(self, dataset_id: str, sources: Sequence[SourceTokens], asked: Sequence[Phase]) -> HeldOutPlan:
        if len(asked) != 1:
            raise PartitionError(f"held_out=True is one pass in one phase, got {len(asked)} phases")
        plan = HeldOutPlan(dataset_id=dataset_id, sources=sources, phase=asked[0])
        self.notices = tuple(
            f"source {name!r} has {tokens:,} held-out tokens, fewer than the {asked[0].seq_len + 1:,} of one sample: left out"
            for name, tokens in plan.too_small
        )
        for notice in self.notices:
            _LOGGER.warning("%s", notice)
        return plan

    def _with_documents(
        self, inputs: NDArray[np.int64], labels: NDArray[np.int64], shards: list[int], starts: list[int], step: int, first: int
    ) -> Batch:
        seq_len = inputs.shape[1]
        nothing = np.zeros(0, dtype=np.int64)
        found = [
            nothing if shard == PADDING else self._store.document_starts(shard, start, seq_len + 1)
            for shard, start in zip(shards, starts, strict=True)
        ]
        if self.mask_document_starts:
            mask_starts(labels, found, IGNORED_LABEL)
        batch = Batch(input_ids=torch.from_numpy(inputs), labels=torch.from_numpy(labels), step=step, first=first)
        if not self.documents:
            return batch
        arrays = document_arrays(found, seq_len)
        return replace(
            batch,
            position_ids=torch.from_numpy(arrays.position_ids),
            document_ids=torch.from_numpy(arrays.document_ids),
            cu_seqlens=torch.from_numpy(arrays.cu_seqlens),
            max_seqlen=arrays.max_seqlen,
        )

    def _rows(self, batch: Batch) -> list[dict[str, Tensor]]:
        columns = {"input_ids": batch.input_ids, "labels": batch.labels}
        if batch.position_ids is not None and batch.document_ids is not None:
            columns |= {"position_ids": batch.position_ids, "document_ids": batch.document_ids}
        return [{name: column[row] for name, column in columns.items()} for row in range(len(batch.input_ids))]

    def _step_of(self, index: int) -> tuple[int, int]:
        """(step, sample of this rank's share) of an index.

        Raises:
            IndexError: if the index is negative or past the end.
        """
        end = self._end()
        if index >= 0:
            for start, steps in phase_runs(self.plan, end):
                per_rank = self.samples_per_rank(start)
                if steps is None or index < steps * per_rank:
                    return start + index // per_rank, index % per_rank
                index -= steps * per_rank
        raise IndexError(f"a TokenDataset's samples are numbered from 0 on{'' if end is None else f' to {len(self) - 1}'}")

    def _end(self) -> int | None:
        """The step before which indices end, if they do."""
        one_phase = len(self.plan.phases) == 1 and self.plan.phases[0].weights is None
        return self.steps_per_epoch if self.num_steps is None and one_phase else self.num_steps
