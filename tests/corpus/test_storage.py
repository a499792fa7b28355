"""What is asked of a remote storage, and how its errors come out."""

from __future__ import annotations

import fsspec
import pytest
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from tokpipe.corpus.storage import list_files, open_file, read_head
from tokpipe.errors import CorpusError, MissingExtraError, UnreadableFileError

SIZE = 200_000_000
fetched: list[int] = []


class CountingFile(AbstractBufferedFile):
    """A large file of zeros that remembers how much of it was fetched."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        fetched.append(end - start)
        return bytes(end - start)


class CountingStorage(AbstractFileSystem):
    """Reads 50 MB ahead unless told otherwise, as s3fs does."""

    protocol = "counting"

    def info(self, path, **options):
        return {"name": path, "size": SIZE, "type": "file"}

    def _open(self, path, mode="rb", **options):
        return CountingFile(self, path, mode, **{**options, "block_size": 50 << 20})


class BrokenStorage(AbstractFileSystem):
    """Raises what no caller expects, as botocore does without credentials."""

    protocol = "broken"

    def find(self, path, **options):
        raise RuntimeError("Unable to locate credentials")

    def _open(self, path, mode="rb", **options):
        raise RuntimeError("Unable to locate credentials")


fsspec.register_implementation("counting", CountingStorage, clobber=True)
fsspec.register_implementation("broken", BrokenStorage, clobber=True)


def test_a_head_costs_no_more_than_itself():
    fetched.clear()
    assert len(read_head("counting://bucket/big.jsonl", 4096)) == 4096
    assert sum(fetched) == 4096


def test_reading_fetches_large_blocks():
    fetched.clear()
    with open_file("counting://bucket/big.jsonl") as file:
        for _ in range(10):
            assert len(file.read(1 << 20)) == 1 << 20
    assert len(fetched) == 1


def test_errors_of_libraries_become_ours():
    with pytest.raises(CorpusError, match=r"broken://bucket: cannot be listed \(RuntimeError: Unable to locate credentials"):
        list_files("broken://bucket")
    with pytest.raises(UnreadableFileError, match="broken://bucket/x: cannot be opened"):
        open_file("broken://bucket/x")


def test_a_missing_package_names_the_extra(monkeypatch):
    def fail(url, **options):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("tokpipe.corpus.storage.fsspec.core.url_to_fs", fail)
    with pytest.raises(MissingExtraError, match=r"pip install 'tokpipe\[s3\]'"):
        list_files("s3://bucket/raw")
