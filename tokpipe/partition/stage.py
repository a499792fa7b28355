"""Copy what some ranks read to node-local disk, and refuse to read anything else there.

The staged folder holds the same `dataset.json`, the tokenizer, every held-out shard, and those training shards, whole, that the
ranks' lanes touch. `staged.json` beside it says for which ranks of which plan; it is written last.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokpipe.errors import ManifestError, PartitionError, StateMismatchError, VerificationError
from tokpipe.partition.phases import Phase
from tokpipe.partition.plan import PartitionPlan
from tokpipe.partition.summary import PartitionSummary
from tokpipe.shards import (
    BIN_SUFFIX,
    IDX_SUFFIX,
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    fsync_folder,
    read_manifest,
    side_path,
    verify_shard,
    write_durably,
)

STAGED_NAME = "staged.json"
STAGED_VERSION = 1


def stage_ranks(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], summary: PartitionSummary, ranks: Sequence[int]
) -> tuple[ShardEntry, ...]:
    """Copy the shards that these ranks read, whole and verified; returns them.

    What is there already and is whole is kept, so an interrupted copy goes on.

    Args:
        folder: the whole dataset.
        out: a folder on the local disk, made if need be.
        summary: the plan, by `plan_partition`.
        ranks: data-parallel ranks of that plan.

    Raises:
        PartitionError: if a rank is out of range, or `out` is the dataset itself or holds another one.
        VerificationError: if a copied shard does not keep what the manifest promises.
    """
    source, target = Path(folder), Path(out)
    manifest = read_manifest(source)
    wrong = [rank for rank in ranks if not 0 <= rank < summary.dp_world_size]
    if wrong or not ranks:
        raise PartitionError(f"ranks to stage must be in [0, {summary.dp_world_size}), got {list(ranks)}")
    _check_target(source, target, manifest)
    (target / STAGED_NAME).unlink(missing_ok=True)
    touched = {piece.shard for rank in ranks for share in summary.shares[rank] for piece in share.pieces}
    entries = [summary.space.shards[number] for number in sorted(touched)]
    entries += [entry for entry in manifest.shards if entry.held_out]
    for entry in entries:
        _copy_shard(source, target, entry, manifest)
    shutil.copytree(source / "tokenizer", target / "tokenizer", dirs_exist_ok=True)
    record = {
        "version": STAGED_VERSION,
        "dataset_id": manifest.dataset_id,
        "plan_hash": summary.plan.plan_hash,
        "phase": summary.phase.as_dict(),
        "dp_world_size": summary.dp_world_size,
        "ranks": sorted(ranks),
        "shards": [entry.name for entry in entries],
    }
    write_durably(target / MANIFEST_NAME, (source / MANIFEST_NAME).read_bytes())
    write_durably(target / STAGED_NAME, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    return tuple(entries)


def read_staged(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What a folder was staged for; None if it is not a staged one.

    Raises:
        ManifestError: if the record cannot be read or is of another version.
    """
    path = Path(folder) / STAGED_NAME
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        version = record["version"]
    except FileNotFoundError:
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


def _check_target(source: Path, target: Path, manifest: Manifest) -> None:
    if target.exists() and target.resolve() == source.resolve():
        raise PartitionError(f"{target}: is the dataset itself; stage to another folder")
    if (target / MANIFEST_NAME).exists():
        there = read_manifest(target).dataset_id
        if there != manifest.dataset_id:
            raise PartitionError(f"{target}: holds dataset {there}, staged would be {manifest.dataset_id}; use an empty folder")


def _copy_shard(source: Path, target: Path, entry: ShardEntry, manifest: Manifest) -> None:
    if not verify_shard(target, entry, manifest):
        return
    for suffix in (BIN_SUFFIX, IDX_SUFFIX):
        path = target / (entry.name + suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        side = side_path(path)
        try:
            shutil.copyfile(source / (entry.name + suffix), side)
            with side.open("rb") as file:
                os.fsync(file.fileno())
            side.replace(path)
        finally:
            side.unlink(missing_ok=True)
        fsync_folder(path.parent)
    problems = verify_shard(target, entry, manifest)
    if problems:
        raise VerificationError(f"{target}: {problems[0].message}")
