"""Copy a dataset, or some of its shards, to a local disk: every shard whole and verified, what is there already kept.

The source is a folder or a URL. `dataset.json` goes away first and comes back last, so that an unfinished copy never opens.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokpipe.errors import DatasetError, PartitionError, TokpipeError, VerificationError
from tokpipe.shards import (
    BIN_SUFFIX,
    IDX_SUFFIX,
    MANIFEST_NAME,
    DatasetFiles,
    Manifest,
    ShardEntry,
    fsync_folder,
    open_files,
    read_manifest,
    side_path,
    verify_shard,
    write_durably,
)

STAGED_NAME = "staged.json"
BLOCK_BYTES = 16 << 20
REMOTE_THREADS = 8
"""Shards under way at once: one stream from an object store is far slower than the network."""

OnBytes = Callable[[int], None]


def copy_dataset(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    entries: Sequence[ShardEntry],
    *,
    others: Sequence[tuple[str, bytes]] = (),
    on_bytes: OnBytes | None = None,
) -> None:
    """Copy these shards, the tokenizer, `others` (name, bytes), and at last the manifest.

    Args:
        folder: the dataset, or its URL.
        out: a folder on a local disk, made if need be.
        entries: shards of that dataset.
        others: small files, written before the manifest.
        on_bytes: called with the bytes of each block that is copied and of each shard that was there already.

    Raises:
        PartitionError: if `out` is the dataset itself or holds another one.
        DatasetError: if a file cannot be read.
        VerificationError: if a copied shard does not keep what the manifest promises.
    """
    source, target = open_files(folder), Path(out)
    manifest = read_manifest(folder)
    _check_target(folder, target, manifest)
    for name in (MANIFEST_NAME, STAGED_NAME):
        (target / name).unlink(missing_ok=True)
    lock = threading.Lock()

    def report(num_bytes: int) -> None:
        with lock:
            if on_bytes is not None:
                on_bytes(num_bytes)

    with ThreadPoolExecutor(REMOTE_THREADS if "://" in str(source) else 1) as pool:
        for _ in pool.map(lambda entry: _copy_shard(source, target, entry, manifest, report), entries):
            pass
    for name in source.names(manifest.tokenizer.path.rpartition("/")[0]):
        _copy_file(source, target, name, lambda num_bytes: None)
    for name, data in others:
        write_durably(target / name, data)
    with source.open(MANIFEST_NAME) as file:
        write_durably(target / MANIFEST_NAME, file.read())


def pull_dataset(
    folder: str | os.PathLike[str], out: str | os.PathLike[str], *, on_bytes: OnBytes | None = None
) -> tuple[ShardEntry, ...]:
    """Copy a whole dataset, from a URL or a folder; returns its shards. Run it again to go on. Raises as `copy_dataset`."""
    entries = read_manifest(folder).shards
    copy_dataset(folder, out, entries, on_bytes=on_bytes)
    return entries


def _check_target(folder: str | os.PathLike[str], target: Path, manifest: Manifest) -> None:
    if "://" not in os.fspath(folder) and target.exists() and target.resolve() == Path(folder).resolve():
        raise PartitionError(f"{target}: is the dataset itself; stage to another folder")
    if (target / MANIFEST_NAME).exists():
        there = read_manifest(target).dataset_id
        if there != manifest.dataset_id:
            raise PartitionError(f"{target}: holds dataset {there}, staged would be {manifest.dataset_id}; use an empty folder")


def _copy_shard(source: DatasetFiles, target: Path, entry: ShardEntry, manifest: Manifest, report: OnBytes) -> None:
    if not verify_shard(target, entry, manifest):
        report(entry.bin_bytes + entry.idx_bytes)
        return
    for suffix in (BIN_SUFFIX, IDX_SUFFIX):
        _copy_file(source, target, entry.name + suffix, report)
    problems = verify_shard(target, entry, manifest)
    if problems:
        raise VerificationError(f"{target}: {problems[0].message}")


def _copy_file(source: DatasetFiles, target: Path, name: str, report: OnBytes) -> None:
    """Stream one file to a side name, flush it to the disk, rename it."""
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    side = side_path(path)
    try:
        with source.open(name) as remote, side.open("wb") as local:
            while block := remote.read(BLOCK_BYTES):
                local.write(block)
                report(len(block))
            local.flush()
            os.fsync(local.fileno())
        side.replace(path)
    except TokpipeError:
        raise
    except Exception as error:
        # The libraries behind fsspec raise errors of their own, without the name of the file.
        raise DatasetError(f"{source}/{name}: cannot be copied to {path}: {type(error).__name__}: {error}") from error
    finally:
        side.unlink(missing_ok=True)
    fsync_folder(path.parent)
