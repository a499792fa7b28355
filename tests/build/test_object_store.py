"""The object store's promises, on fsspec's memory filesystem and on a real S3 server."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from tests.s3_server import serve_s3
from tokpipe.build import object_store
from tokpipe.build.object_store import ObjectStore, expected_etag, open_filesystem, upload
from tokpipe.errors import BuildError, MissingExtraError, OutputLockedError


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(object_store.tempfile, "gettempdir", lambda: str(tmp_path / "scratch"))
    return ObjectStore(f"memory://{uuid.uuid4().hex}/data")


@pytest.fixture(scope="module")
def s3_server():
    with serve_s3("bucket") as environment:
        yield environment


@pytest.fixture
def s3(s3_server, tmp_path, monkeypatch):
    import s3fs

    for name, value in s3_server.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setattr(object_store.tempfile, "gettempdir", lambda: str(tmp_path / "scratch"))
    yield ObjectStore(f"s3://bucket/{uuid.uuid4().hex}")
    s3fs.S3FileSystem.clear_instance_cache()


def check_small_files(store):
    assert not store.exists("a/b.json") and store.num_bytes("a/b.json") == -1 and store.names("a") == []
    with pytest.raises(FileNotFoundError):
        store.read("a/b.json")
    store.write("a/b.json", b"one")
    store.write("a/b.json", b"second")
    store.write("a/c/d.json", b"d")
    assert store.exists("a/b.json") and store.num_bytes("a/b.json") == 6
    assert store.read("a/b.json") == b"second"
    assert store.names("a") == ["a/b.json", "a/c/d.json"]
    store.remove("a/b.json")
    store.remove("a/b.json")
    assert store.names("a") == ["a/c/d.json"]


def check_first_receipt_stands(store):
    assert store.put_receipt("r.json", b"first") == b"first"
    assert store.put_receipt("r.json", b"second") == b"first"
    assert store.read("r.json") == b"first"


def check_publish(store):
    with store.attempt("tokenize-00003") as attempt:
        attempt.path("shards/hi-00003-000.bin").write_bytes(b"ids")
        attempt.path("shards/hi-00003-000.idx").write_bytes(b"index")
        stands = attempt.publish("shards/hi-00003-000", (".bin", ".idx"))
        attempt.path("tokenizer/tokenizer.model").write_bytes(b"model")
        assert attempt.publish("tokenizer/tokenizer.model") == "tokenizer/tokenizer.model"
        folder = attempt.folder
    assert not folder.exists()
    assert stands.startswith("shards/hi-00003-000.") and store.read(f"{stands}.bin") == b"ids"
    with store.attempt("tokenize-00003") as attempt:
        attempt.path("shards/hi-00003-000.bin").write_bytes(b"ids")
        assert attempt.publish("shards/hi-00003-000", (".bin",)) != stands
    assert len(store.names("shards")) == 3


def check_local_copies(store):
    store.write("tokenizer/tokenizer.model", b"model")
    store.write("tokenizer/card.json", b"{}")
    folder = store.local("tokenizer")
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) == ["card.json", "tokenizer.model"]
    store.write("dataset.json", b"{}")
    store.write("shards/big.bin", b"0" * 100)
    top = store.local(".")
    assert (top / "dataset.json").read_bytes() == b"{}" and not (top / "shards").exists()
    assert store.local("shards/big.bin").read_bytes() == b"0" * 100
    store.write("dataset.json", b"{ }")
    assert (store.local(".") / "dataset.json").read_bytes() == b"{ }"


CHECKS = [check_small_files, check_first_receipt_stands, check_publish, check_local_copies]


@pytest.mark.parametrize("check", CHECKS)
def test_promises_in_memory(store, check):
    check(store)


@pytest.mark.engine
@pytest.mark.parametrize("check", CHECKS)
def test_promises_on_s3(s3, check):
    check(s3)


def test_a_failed_attempt_publishes_nothing(store):
    with pytest.raises(RuntimeError, match="midway"), store.attempt("x") as attempt:
        attempt.path("shards/a.bin").write_bytes(b"ids")
        raise RuntimeError("midway")
    assert store.names("shards") == [] and store.dead_attempts() == []


def test_two_builds_on_one_machine_are_kept_apart(store):
    with store.lock(), pytest.raises(OutputLockedError, match="in use"), ObjectStore(store.out).lock():
        pass


def test_the_cache_goes_with_the_lock(store):
    with store.lock():
        store.write("tokenizer/tokenizer.model", b"model")
        copy = store.local("tokenizer/tokenizer.model")
        assert copy.read_bytes() == b"model"
    assert not (store.scratch / "cache").exists()
    assert store.local("tokenizer/tokenizer.model").read_bytes() == b"model"


def test_what_the_libraries_raise_becomes_an_error_that_says_where(store, monkeypatch):
    """botocore's errors, such as absent credentials, are not even OSErrors."""

    class NoCredentialsError(Exception):
        pass

    def fail(*arguments, **options):
        raise NoCredentialsError("Unable to locate credentials")

    for call in ("info", "cat_file", "pipe_file", "find", "rm_file"):
        monkeypatch.setattr(store.filesystem, call, fail)
    asks = [
        lambda: store.exists("a.json"),
        lambda: store.read("a.json"),
        lambda: store.write("a.json", b""),
        lambda: store.put_receipt("a.json", b""),
        lambda: store.names("a.json"),
        lambda: store.remove("a.json"),
        lambda: store.local("a.json"),
    ]
    for ask in asks:
        with pytest.raises(BuildError, match=r"data/a\.json: NoCredentialsError: Unable .* your credentials"):
            ask()


def test_an_object_that_arrives_short_is_an_error(store, tmp_path, monkeypatch):
    source = tmp_path / "file"
    source.write_bytes(b"0123456789")
    filesystem = store.filesystem
    monkeypatch.setattr(filesystem, "put_file", lambda local, key, **_: filesystem.pipe_file(key, b"01234"))
    with pytest.raises(BuildError, match=r"arrived with 5 bytes, expected 10"):
        upload(filesystem, source, store.key("shards/a"), "memory://a")
    monkeypatch.setattr(filesystem, "put_file", lambda local, key, **_: filesystem.pipe_file(key, b"012345678X"))
    with pytest.raises(BuildError, match="other bytes than were sent"):
        upload(filesystem, source, store.key("shards/a"), "memory://a")


def test_a_missing_package_names_the_extra(monkeypatch):
    def fail(url, **options):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(object_store.fsspec.core, "url_to_fs", fail)
    with pytest.raises(MissingExtraError, match=r"pip install 'tokpipe\[s3\]'"):
        open_filesystem("s3://bucket/x")


def test_an_unknown_protocol_is_an_error():
    with pytest.raises(BuildError, match="no-such-protocol"):
        open_filesystem("no-such-protocol://bucket/x")


def test_etag_of_one_part_is_md5(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert expected_etag(path, multipart=False) == hashlib.md5(b"x" * 100).hexdigest()
    monkeypatch.setattr(object_store, "UPLOAD_CHUNK_BYTES", 40)
    assert expected_etag(path, multipart=False) == hashlib.md5(b"x" * 100).hexdigest()
    assert expected_etag(path, multipart=True).endswith("-3")


@pytest.mark.engine
def test_a_multipart_upload_is_checked_by_its_etag(s3, tmp_path, monkeypatch):
    """S3 wants parts of at least 5 MiB; reading the object back would hide a wrong ETag, so it is forbidden here."""
    monkeypatch.setattr(object_store, "UPLOAD_CHUNK_BYTES", 5 << 20)
    source = tmp_path / "file"
    source.write_bytes(os.urandom(11 << 20))
    monkeypatch.setattr(object_store, "_digest", lambda file: pytest.fail("read back"))
    upload(s3.filesystem, source, s3.key("shards/big"), "s3://big")
    assert s3.num_bytes("shards/big") == 11 << 20
    assert "-3" in s3.filesystem.info(s3.key("shards/big"))["ETag"]


UPLOADER = """
import sys
from pathlib import Path
from tokpipe.build import object_store
from tokpipe.build.object_store import ObjectStore
object_store.UPLOAD_CHUNK_BYTES = 5 << 20
with ObjectStore(sys.argv[1]).attempt("x") as attempt:
    attempt.path("shards/a.bin").write_bytes(b"7" * (200 << 20))
    print("uploading", flush=True)
    attempt.publish("shards/a", (".bin",))
"""


@pytest.mark.engine
def test_a_process_killed_in_its_upload_leaves_no_object(s3, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", UPLOADER, s3.out], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "uploading\n"
    time.sleep(0.4)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert s3.names("shards") == []
