"""Remove what nothing names: attempts of dead processes, files without a receipt, receipts of pieces whose task is done."""

from __future__ import annotations

import re

from tokpipe.build.plan import Plan, read_plan
from tokpipe.build.receipts import FOLDER, finished_tasks, read_receipt
from tokpipe.build.store import ATTEMPTS, Store, open_store, output_errors
from tokpipe.build.tasks import stages
from tokpipe.shards import BIN_SUFFIX, IDX_SUFFIX, MANIFEST_NAME, SIDE_SUFFIX, read_manifest

# What lies elsewhere in the output is not the build's to remove, but for the side files of small files that were being written.
FOLDERS = ("shards/", "rejects/", "build/counts/", "build/through/")
SIDE_FILE = re.compile(rf".*\.\d+-[0-9a-f]{{8}}{re.escape(SIDE_SUFFIX)}", re.DOTALL)


def clean(out: str, *, dry_run: bool = False) -> list[str]:
    """Remove leftovers of a build; returns the names removed, or with `dry_run` those that would be, sorted.

    Raises:
        BuildError: if there is no build at `out`.
        OutputLockedError: if one runs there.
    """
    store = open_store(out)
    plan = read_plan(store)
    with output_errors(out), store.lock():
        kept, stale = _named(store, plan)
        unnamed = [name for name in store.names("") if name not in kept and _is_ours(name)]
        dead = store.dead_attempts()
        if not dry_run:
            for name in [*stale, *unnamed]:
                store.remove(name)
            store.remove_dead_attempts()
    return sorted([*stale, *unnamed, *dead])


def _is_ours(name: str) -> bool:
    """Whether a file that nothing names may be removed; attempts have locks that say so."""
    if name.startswith(f"{ATTEMPTS}/"):
        return False
    return name.startswith(FOLDERS) or SIDE_FILE.fullmatch(name) is not None


def _named(store: Store, plan: Plan) -> tuple[set[str], list[str]]:
    """Names that receipts or the manifest vouch for, and receipts that nothing needs any more."""
    kept: set[str] = set()
    stale: list[str] = []
    for stage in stages(plan):
        done = finished_tasks(store, stage)
        for name in store.names(f"{FOLDER}/{stage}"):
            if SIDE_FILE.fullmatch(name):
                continue  # of a receipt that was being written when its process died
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
