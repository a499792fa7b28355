"""Copies from a URL: here fsspec's memory filesystem; tests/engine/test_build_s3.py has a real S3 server."""

from __future__ import annotations

import uuid
from pathlib import Path

import fsspec
import pytest

from tokpipe.dataset import TokenDataset, TokenLoader
from tokpipe.errors import DatasetError, ManifestError, PartitionError, VerificationError
from tokpipe.partition import copy, plan_partition, pull_dataset, shards_of_ranks, stage_ranks
from tokpipe.shards import read_manifest, verify_dataset

LAYOUT = {"seq_len": 8, "global_batch_size": 4}


@pytest.fixture
def folder(tmp_path, dataset_writer) -> Path:
    dataset_writer(tmp_path / "data", [("en", False, [40 + 7 * i, 60, 33]) for i in range(6)] + [("en", True, [50])])
    return tmp_path / "data"


@pytest.fixture
def url(folder) -> str:
    place = f"/{uuid.uuid4().hex}"
    fsspec.filesystem("memory").put(f"{folder}/", f"{place}/", recursive=True)
    return f"memory:/{place}"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_whole_dataset_arrives_and_counts_its_bytes(url, folder, tmp_path):
    counted: list[int] = []
    entries = pull_dataset(url, tmp_path / "out", on_bytes=counted.append)
    assert files(tmp_path / "out") == files(folder)
    assert entries == read_manifest(folder).shards
    assert sum(counted) == sum(entry.bin_bytes + entry.idx_bytes for entry in entries)


def test_a_pull_goes_on_and_repairs(url, folder, tmp_path):
    out = tmp_path / "out"
    entries = pull_dataset(url, out)
    kept, broken, lost = (out / f"{entry.name}.bin" for entry in entries[:3])
    before = kept.stat().st_mtime_ns
    broken.write_bytes(b"x" + broken.read_bytes()[1:])
    lost.unlink()
    pull_dataset(url, out)
    assert kept.stat().st_mtime_ns == before
    assert files(out) == files(folder)


def test_an_unfinished_pull_does_not_open(url, tmp_path, monkeypatch):
    out = tmp_path / "out"
    pull_dataset(url, out)
    (out / f"{read_manifest(out).shards[3].name}.bin").unlink()

    def fail(*arguments):
        raise DatasetError("the line is cut")

    with monkeypatch.context() as patch, pytest.raises(DatasetError, match="the line is cut"):
        patch.setattr(copy, "_copy_file", fail)
        pull_dataset(url, out)
    with pytest.raises(ManifestError):
        read_manifest(out)
    pull_dataset(url, out)
    assert verify_dataset(out).ok


def test_a_share_reads_like_the_whole(url, folder, tmp_path):
    summary = plan_partition(url, dp=2, **LAYOUT)
    entries = stage_ranks(url, tmp_path / "out", summary, [1])
    assert entries == shards_of_ranks(url, summary, [1])
    assert len(entries) < len(read_manifest(folder).shards)
    rows = [
        [
            row
            for batch in TokenLoader(TokenDataset(place, dp_rank=1, dp_world_size=2, max_steps=9, **LAYOUT), 2)
            for row in batch.labels
        ]
        for place in (folder, tmp_path / "out")
    ]
    assert [row.tolist() for row in rows[0]] == [row.tolist() for row in rows[1]]


def test_a_whole_pull_over_a_share_is_no_share(url, folder, tmp_path):
    stage_ranks(url, tmp_path / "out", plan_partition(url, dp=2, **LAYOUT), [1])
    pull_dataset(url, tmp_path / "out")
    assert not (tmp_path / "out" / copy.STAGED_NAME).exists()
    assert files(tmp_path / "out") == files(folder)


def test_a_damaged_source_is_not_taken(url, tmp_path):
    name = read_manifest(url).shards[2].name
    filesystem = fsspec.filesystem("memory")
    path = f"{url.removeprefix('memory:/')}/{name}.bin"
    filesystem.pipe_file(path, b"x" + filesystem.cat_file(path)[1:])
    with pytest.raises(VerificationError, match=name):
        pull_dataset(url, tmp_path / "out")
    assert not (tmp_path / "out" / "dataset.json").exists()


def test_a_missing_shard_names_the_url(url, tmp_path):
    name = read_manifest(url).shards[2].name
    fsspec.filesystem("memory").rm_file(f"{url.removeprefix('memory:/')}/{name}.idx")
    with pytest.raises(DatasetError, match=rf"{url}/{name}.idx: cannot be copied"):
        pull_dataset(url, tmp_path / "out")


def test_another_dataset_is_not_overwritten(url, tmp_path, dataset_writer):
    dataset_writer(tmp_path / "other", [("en", False, [99])])
    with pytest.raises(PartitionError, match="use an empty folder"):
        pull_dataset(url, tmp_path / "other")
    assert read_manifest(tmp_path / "other")
