"""Remove what nothing names: attempts of dead processes, files without a receipt, receipts of pieces whose task is done."""

from __future__ import annotations

from tokpipe.build.plan import Plan, read_plan
from tokpipe.build.receipts import FOLDER, finished_tasks, read_receipt
from tokpipe.build.store import Store, open_store
from tokpipe.build.tasks import stages
from tokpipe.shards import BIN_SUFFIX, IDX_SUFFIX, MANIFEST_NAME, read_manifest

# Only these are looked into: whatever else lies in the output is not the build's to remove.
FOLDERS = ("shards", "rejects", "build/counts", "build/through")


def clean(out: str, *, dry_run: bool = False) -> list[str]:
    """Remove leftovers of a build; returns the names removed, or with `dry_run` those that would be, sorted.

    Raises:
        BuildError: if there is no build at `out`.
        OutputLockedError: if one runs there.
    """
    store = open_store(out)
    plan = read_plan(store)
    with store.lock():
        kept, stale = _named(store, plan)
        unnamed = [name for folder in FOLDERS for name in store.names(folder) if name not in kept]
        dead = store.dead_attempts()
        if not dry_run:
            for name in [*stale, *unnamed]:
                store.remove(name)
            store.remove_dead_attempts()
    return sorted([*stale, *unnamed, *dead])


def _named(store: Store, plan: Plan) -> tuple[set[str], list[str]]:
    """Names that receipts or the manifest vouch for, and receipts that nothing needs any more."""
    kept: set[str] = set()
    stale: list[str] = []
    for stage in stages(plan):
        done = finished_tasks(store, stage)
        for name in store.names(f"{FOLDER}/{stage}"):
            task, _, piece = name.rpartition("/")[2].removesuffix(".json").partition("-")
            if piece and task.isdigit() and int(task) in done:
                stale.append(name)
                continue
            receipt = read_receipt(store, name, plan.hash)
            kept |= set(receipt.files)
            kept |= {shard.name + suffix for shard in receipt.shards for suffix in (BIN_SUFFIX, IDX_SUFFIX)}
    if store.exists(MANIFEST_NAME):
        shards = read_manifest(store.out).shards
        kept |= {shard.name + suffix for shard in shards for suffix in (BIN_SUFFIX, IDX_SUFFIX)}
    return kept, stale
