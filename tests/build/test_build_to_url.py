"""A whole build into an object store; here fsspec's memory filesystem, in this process."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tokpipe.build import build, clean, object_store, open_store
from tokpipe.cli.main import cli
from tokpipe.corpus import CorpusConfig
from tokpipe.errors import BuildError
from tokpipe.shards import read_manifest, verify_dataset


@pytest.fixture
def remote(config, tmp_path, monkeypatch):
    """The config with a URL as its output; scratch and cache in this test's folder."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(object_store.tempfile, "gettempdir", lambda: str(scratch))
    return replace(config, out=f"memory://{uuid.uuid4().hex}/data")


def test_same_dataset_as_in_a_folder(config, remote, inline):
    expected = build(config, engine=inline)
    report = build(remote, engine=inline)
    assert report.dataset_id == expected.dataset_id
    store = open_store(remote.out)
    assert store.exists("partition.json") and store.exists("report.txt") and store.exists("tokenizer/card.json")
    assert verify_dataset(remote.out).ok
    assert {entry.name.count(".") for entry in read_manifest(remote.out).shards} == {1}, "the attempt's id is in the name"
    assert build(remote, engine=inline).already_finished
    assert not (store.scratch / "cache").exists() or not list((store.scratch / "attempts").glob("*"))


def test_clean_removes_what_no_receipt_names(remote, inline):
    build(remote, engine=inline)
    store = open_store(remote.out)
    store.write("shards/en-00000-000.deadbeef.bin", b"of an attempt that died")
    store.write("build/through/1.0/count-00001", b"")
    assert clean(remote.out) == ["build/through/1.0/count-00001", "shards/en-00000-000.deadbeef.bin"]
    assert verify_dataset(remote.out).ok


def test_a_missing_object_is_named(remote, inline):
    build(remote, engine=inline)
    store = open_store(remote.out)
    lost = f"{read_manifest(remote.out).shards[0].name}.idx"
    store.remove(lost)
    store.remove("dataset.json")
    with pytest.raises(BuildError, match=rf"{lost}: is not there, but .*/receipts/tokenize/0000\d.json promises"):
        build(remote, engine=inline)


SECRET = "s3://AKIAEXAMPLE:very-secret@bucket/data"


def test_credentials_in_urls_are_refused_everywhere(corpus, config, tmp_path):
    for make in (lambda: replace(config, out=SECRET), lambda: CorpusConfig(corpus=SECRET)):
        with pytest.raises(ValueError, match="user name and a password"):
            make()
    local = str(tmp_path / "out")
    for arguments in (
        ["build", "--corpus", SECRET, "--out", local],
        ["build", "--corpus", str(corpus), "--out", SECRET],
        ["verify", SECRET],
        ["clean", SECRET],
        ["pull", SECRET, "--out", local],
        ["inspect", SECRET],
    ):
        done = CliRunner().invoke(cli, arguments)
        words = done.output + str(done.exception)
        assert done.exit_code != 0 and "user name and a password" in words
        assert "very-secret" not in words and "AKIAEXAMPLE" not in words
