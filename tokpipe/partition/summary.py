"""`partition.json`: the partition of a dataset, written out for people and for tools that copy files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokpipe.errors import PartitionError
from tokpipe.partition.checks import fit_batch
from tokpipe.partition.order import Order
from tokpipe.partition.phases import Phase
from tokpipe.partition.plan import PartitionPlan, source_tokens
from tokpipe.partition.shares import SourceShare, rank_share, share_as_dict
from tokpipe.partition.token_space import TokenSpace
from tokpipe.shards import Manifest, read_manifest, token_dtype, write_durably

PARTITION_NAME = "partition.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSummary:
    """A partition: who reads what, and what nobody reads."""

    plan: PartitionPlan
    space: TokenSpace
    itemsize: int
    dp_world_size: int
    shares: tuple[tuple[SourceShare, ...], ...]
    """For every rank, its share of each source."""
    notices: tuple[str, ...] = ()

    @property
    def phase(self) -> Phase:
        """The only phase of the plan."""
        return self.plan.phases[0]

    def as_dict(self, ranks: Sequence[int] | None = None) -> dict[str, Any]:
        """All of it, or only these ranks' shares, in plain JSON types."""
        steps, tails = self.plan.steps_per_epoch(), self.plan.tail_per_epoch()
        return {
            "version": 1,
            "dataset_id": self.plan.dataset_id,
            "plan_hash": self.plan.plan_hash,
            "seed": self.plan.seed,
            "order": self.plan.order,
            "dp_world_size": self.dp_world_size,
            "phase": self.phase.as_dict(),
            "notices": list(self.notices),
            "sources": [
                {
                    "source": name,
                    "samples_per_step": count,
                    "share_of_batch": count / self.phase.global_batch_size,
                    "steps_per_epoch": steps[name],
                    "samples_per_epoch": steps[name] * count,
                    "tail_samples_left_out": tails[name],
                }
                for name, count in self.plan.counts_at(0).items()
            ],
            "ranks": [
                {
                    "rank": rank,
                    "samples_per_step": sum(len(share.lanes) for share in shares),
                    "samples_per_epoch": sum(len(share.samples) for share in shares),
                    "shares": [share_as_dict(share, self.space, self.itemsize) for share in shares],
                }
                for rank, shares in self._chosen(ranks)
            ],
        }

    def text(self, ranks: Sequence[int] | None = None) -> str:
        """The partition, or only these ranks' shares, as a person wants to see it."""
        phase, steps, tails = self.phase, self.plan.steps_per_epoch(), self.plan.tail_per_epoch()
        tokens = phase.global_batch_size * phase.seq_len
        lines = [f"Notice: {notice}" for notice in self.notices]
        lines.append(
            f"dataset {self.plan.dataset_id}: {phase.global_batch_size:,} samples of {phase.seq_len:,} tokens a step "
            f"({tokens:,} tokens) over {self.dp_world_size:,} data-parallel ranks, order {self.plan.order}, seed {self.plan.seed}"
        )
        for name, count in self.plan.counts_at(0).items():
            lines.append(
                f"  {name}: {count:,} samples a step ({count / phase.global_batch_size:.2%}), {steps[name]:,} steps an epoch, "
                f"{steps[name] * count:,} samples an epoch, tail of {tails[name]:,} samples left out"
            )
        for rank, shares in self._chosen(ranks):
            lines.append(f"rank {rank}: {', '.join(self._share_text(share) for share in shares)}")
        return "\n".join(lines)

    def _chosen(self, ranks: Sequence[int] | None) -> list[tuple[int, tuple[SourceShare, ...]]]:
        wrong = [rank for rank in ranks or () if not 0 <= rank < self.dp_world_size]
        if wrong:
            raise PartitionError(f"rank must be in [0, {self.dp_world_size}), got {wrong[0]}")
        return [(rank, self.shares[rank]) for rank in (range(self.dp_world_size) if ranks is None else ranks)]

    def _share_text(self, share: SourceShare) -> str:
        first, last = share.pieces[0], share.pieces[-1]
        files = f"{self.space.shards[first.shard].name}.bin from byte {first.start * self.itemsize:,}"
        if last.shard == first.shard:
            files += f" to {last.stop * self.itemsize:,}"
        else:
            between = f" and {len(share.pieces) - 2:,} files between" if len(share.pieces) > 2 else ""
            files += f" to {self.space.shards[last.shard].name}.bin byte {last.stop * self.itemsize:,}{between}"
        num_bytes = (share.tokens[1] - share.tokens[0]) * self.itemsize
        return f"{len(share.lanes):,} lanes of {share.source}, {len(share.samples):,} samples, {num_bytes:,} bytes ({files})"


def plan_partition(
    folder: str | os.PathLike[str],
    *,
    dp: int,
    seq_len: int,
    global_batch_size: int,
    weights: Mapping[str, float] | None = None,
    seed: int = 0,
    order: Order = "blocks",
    exact: bool = True,
) -> PartitionSummary:
    """Lay a dataset out over `dp` data-parallel ranks.

    Args:
        folder: of the dataset.
        dp: data-parallel ranks.
        seq_len: tokens per sample.
        global_batch_size: samples per step over all ranks.
        weights: share of each source; None reads all in their natural proportion.
        seed, order: as `TokenDataset` takes them.
        exact: False takes the largest layout that works if there are too few tokens, and says so in `notices`.

    Raises:
        ManifestError: if there is no dataset.
        PartitionError: if it cannot be laid out; with the nearest that can.
    """
    manifest = read_manifest(folder)
    pairs = None if weights is None else tuple(weights.items())
    phase = Phase(global_batch_size=global_batch_size, seq_len=seq_len, weights=pairs)
    notices: tuple[str, ...] = ()
    if not exact:
        dp, phase, notices = _fit(manifest, dp, phase)
    plan = PartitionPlan.of_manifest(manifest, phases=[phase], seed=seed, order=order, batch_multiple=dp)
    space = TokenSpace(manifest, held_out=False)
    shares = tuple(rank_share(plan, space, dp_rank=rank, dp_world_size=dp) for rank in range(dp))
    itemsize = token_dtype(manifest.dtype).itemsize
    return PartitionSummary(plan=plan, space=space, itemsize=itemsize, dp_world_size=dp, shares=shares, notices=notices)


def save_partition(folder: str | os.PathLike[str], summary: PartitionSummary) -> Path:
    """Write `partition.json` into a dataset folder; returns its path."""
    path = Path(folder) / PARTITION_NAME
    write_durably(path, (json.dumps(summary.as_dict(), indent=1, ensure_ascii=False) + "\n").encode())
    return path


def write_partition(
    folder: str | os.PathLike[str],
    *,
    dp: int,
    seq_len: int,
    global_batch_size: int,
    weights: Mapping[str, float] | None = None,
    exact: bool = False,
) -> PartitionSummary:
    """Plan and save in one: what a build does at its end. The arguments are those of `plan_partition`.

    Raises:
        ManifestError: if there is no dataset.
        PartitionError: if nothing at all can be laid out.
    """
    summary = plan_partition(folder, dp=dp, seq_len=seq_len, global_batch_size=global_batch_size, weights=weights, exact=exact)
    save_partition(folder, summary)
    return summary


def _fit(manifest: Manifest, dp: int, phase: Phase) -> tuple[int, Phase, tuple[str, ...]]:
    sources = source_tokens(manifest, held_out=False)
    fit = fit_batch(
        sources, dp_world_size=dp, global_batch_size=phase.global_batch_size, seq_len=phase.seq_len, weights=phase.weights
    )
    if fit is None:
        total = sum(source.num_tokens for source in sources)
        raise PartitionError(f"{total:,} training tokens are too few for any sample; add text or hold less out")
    found = Phase(global_batch_size=fit.global_batch_size, seq_len=fit.seq_len, weights=phase.weights)
    return fit.dp_world_size, found, (fit.notice,) if fit.notice else ()
