"""Copy what some ranks read to node-local disk, and refuse to read anything else there.

The staged folder holds the same `dataset.json`, the tokenizer, every held-out shard, and those training shards, whole, that the
ranks' lanes touch. `staged.json` beside it says for which ranks of which plan.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokpipe.errors import ManifestError, PartitionError, StateMismatchError
from tokpipe.partition.copy import STAGED_NAME, OnBytes, copy_dataset
from tokpipe.partition.phases import Phase
from tokpipe.partition.plan import PartitionPlan
from tokpipe.partition.summary import PartitionSummary
from tokpipe.shards import ShardEntry, read_manifest

STAGED_VERSION = 1


def stage_ranks(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    summary: PartitionSummary,
    ranks: Sequence[int],
    *,
    on_bytes: OnBytes | None = None,
) -> tuple[ShardEntry, ...]:
    """Copy the shards that these ranks read, whole and verified; returns them.

    What is there already and is whole is kept, so an interrupted copy goes on.

    Args:
        folder: the whole dataset, or its URL.
        out: a folder on the local disk, made if need be.
        summary: the plan, by `plan_partition`.
        ranks: data-parallel ranks of that plan.
        on_bytes: called with the bytes of what is copied, and of each shard that was there already.

    Raises:
        PartitionError: if a rank is out of range, or `out` is the dataset itself or holds another one.
        VerificationError: if a copied shard does not keep what the manifest promises.
    """
    entries = shards_of_ranks(folder, summary, ranks)
    record = {
        "version": STAGED_VERSION,
        "dataset_id": summary.plan.dataset_id,
        "plan_hash": summary.plan.plan_hash,
        "phase": summary.phase.as_dict(),
        "dp_world_size": summary.dp_world_size,
        "ranks": sorted(ranks),
        "shards": [entry.name for entry in entries],
    }
    text = (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode()
    copy_dataset(folder, out, entries, others=[(STAGED_NAME, text)], on_bytes=on_bytes)
    return entries


def shards_of_ranks(folder: str | os.PathLike[str], summary: PartitionSummary, ranks: Sequence[int]) -> tuple[ShardEntry, ...]:
    """The training shards that these ranks' lanes touch, and every held-out shard.

    Raises:
        PartitionError: if a rank is out of range.
    """
    wrong = [rank for rank in ranks if not 0 <= rank < summary.dp_world_size]
    if wrong or not ranks:
        raise PartitionError(f"ranks to stage must be in [0, {summary.dp_world_size}), got {list(ranks)}")
    touched = {piece.shard for rank in ranks for share in summary.shares[rank] for piece in share.pieces}
    entries = [summary.space.shards[number] for number in sorted(touched)]
    return (*entries, *(entry for entry in read_manifest(folder).shards if entry.held_out))


def read_staged(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What a folder was staged for; None if it is not a staged one.

    Raises:
        ManifestError: if the record cannot be read or is of another version.
    """
    path = Path(folder) / STAGED_NAME
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        version = record["version"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"{path}: is not the record of a staged share ({error}). Stage the share again.") from error
    if version != STAGED_VERSION:
        raise ManifestError(f"{path}: version {version}, this tokpipe reads {STAGED_VERSION}. Stage the share again.")
    return record


def check_staged(folder: str | os.PathLike[str], plan: PartitionPlan, *, dp_rank: int, dp_world_size: int) -> None:
    """Refuse a staged folder that was made for another plan, another number of ranks or other ranks.

    Raises:
        StateMismatchError: naming every difference.
    """
    record = read_staged(folder)
    if record is None:
        return
    differences = []
    staged = Phase.from_dict(record["phase"])
    if len(plan.phases) != 1:
        differences.append(f"it holds one phase, asked are {len(plan.phases)}")
    elif plan.phases[0] != staged:
        differences += phase_differences(staged, plan.phases[0], "staged", "asked")
    if plan.plan_hash != record["plan_hash"]:
        differences.append(f"seed or order: asked are seed {plan.seed} and order {plan.order!r}, staged were others")
    if dp_world_size != record["dp_world_size"]:
        differences.append(f"dp_world_size is {record['dp_world_size']} staged and {dp_world_size} asked")
    elif dp_rank not in record["ranks"]:
        differences.append(f"it holds the ranks {', '.join(map(str, record['ranks']))}, asked is {dp_rank}")
    if differences:
        raise StateMismatchError(
            f"{folder}: is a staged share of another plan: {'; '.join(differences)}. Stage again, or read the whole dataset."
        )


def phase_differences(one: Phase, other: Phase, name: str, other_name: str) -> list[str]:
    """Every setting in which two phases differ, with both values."""
    a, b = one.as_dict(), other.as_dict()
    return [f"{key} is {a[key]} {name} and {b[key]} {other_name}" for key in a if a[key] != b[key]]
