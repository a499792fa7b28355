"""Datasets behind a URL: the manifest and verify read them; fsspec's in-memory file system stands for an object store."""

from __future__ import annotations

import sys

import fsspec
import pytest

from tests.s3_server import serve_s3
from tokpipe.errors import DatasetError, ManifestError, MissingExtraError
from tokpipe.shards import read_document, read_manifest, verify_dataset
from tokpipe.shards.folder import open_files, read_small


@pytest.fixture
def remote(make_dataset):
    """A good dataset, copied to memory://bucket/data."""
    folder, manifest = make_dataset()
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    for path in folder.rglob("*.*"):
        filesystem.pipe_file(f"/bucket/data/{path.relative_to(folder)}", path.read_bytes())
    yield "memory://bucket/data", manifest, filesystem
    filesystem.store.clear()


def test_a_remote_dataset_reads_and_verifies_like_a_local_one(remote):
    url, manifest, _ = remote
    assert read_manifest(url) == read_manifest(f"{url}/") == manifest
    seen = []

    def fingerprint(path):
        seen.append(path.read_bytes())
        return manifest.tokenizer.fingerprint

    report = verify_dataset(url, fingerprint_of=fingerprint)
    assert report.ok, report.problems
    assert seen == [b"a model"]


def test_damage_behind_a_url_is_found(remote):
    url, _, filesystem = remote
    raw = bytearray(filesystem.cat_file("/bucket/data/shards/hi-00000-000.bin"))
    raw[0] ^= 1
    filesystem.pipe_file("/bucket/data/shards/hi-00000-000.bin", bytes(raw))
    filesystem.rm("/bucket/data/shards/en-00002-000.idx")
    filesystem.pipe_file("/bucket/data/shards/too-many.idx", b"")
    assert sorted(problem.kind for problem in verify_dataset(url).problems) == ["extra", "hash", "missing"]


def test_what_is_not_there(remote):
    url, manifest, _ = remote
    with pytest.raises(ManifestError, match=r"memory://bucket/other: no dataset.json here"):
        read_manifest("memory://bucket/other")
    assert open_files("memory://bucket/other").names("shards") == []
    with pytest.raises(ManifestError, match="documents are read from local files"):
        read_document(url, manifest, 0)


def test_a_store_that_cannot_be_reached_is_a_located_error(remote, monkeypatch):
    url, _, filesystem = remote

    def fail(*args, **kwargs):
        raise RuntimeError("no credentials")

    for method in ("info", "ls", "_open"):
        monkeypatch.setattr(type(filesystem), method, fail)
    files = open_files(url)
    for call in (lambda: files.size("x"), lambda: files.names("shards"), lambda: read_small(files, "x")):
        with pytest.raises(DatasetError, match=r"memory://bucket/data/.*: cannot be read: RuntimeError: no credentials"):
            call()


def test_an_unknown_protocol_and_a_missing_package():
    with pytest.raises(DatasetError, match="nosuch://x"):
        open_files("nosuch://x")
    modules = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "s3fs"}
    sys.modules["s3fs"] = None
    try:
        with pytest.raises(MissingExtraError, match=r"tokpipe\[s3\]"):
            open_files("s3://bucket/x")
    finally:
        del sys.modules["s3fs"]
        sys.modules.update(modules)


@pytest.mark.engine
def test_a_real_s3_server(make_dataset, monkeypatch):
    import s3fs

    folder, manifest = make_dataset()
    with serve_s3("bucket") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        filesystem = s3fs.S3FileSystem()
        for path in folder.rglob("*.*"):
            filesystem.pipe_file(f"bucket/data/{path.relative_to(folder)}", path.read_bytes())
        report = verify_dataset("s3://bucket/data", fingerprint_of=lambda _: manifest.tokenizer.fingerprint)
        assert report.ok, report.problems
        filesystem.pipe_file("bucket/data/shards/hi-00000-000.bin", b"short")
        assert [problem.kind for problem in verify_dataset("s3://bucket/data").problems] == ["size"]
        with pytest.raises(ManifestError, match=r"s3://bucket/nothing: no dataset.json here"):
            read_manifest("s3://bucket/nothing")
        s3fs.S3FileSystem.clear_instance_cache()


def test_a_local_folder(tmp_path):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a").write_bytes(b"abc")
    files = open_files(tmp_path)
    assert str(files) == str(tmp_path)
    assert files.size("shards/a") == 3
    assert files.size("shards") is None
    assert files.size("shards/b") is None
    assert files.names("shards") == ["shards/a"]
    assert files.names("nowhere") == []
    assert read_small(files, "shards/a") == b"abc"
    with files.local_copy("shards/a") as path:
        assert path == tmp_path / "shards" / "a"
