"""A whole build from an S3 server to it, killed in the middle of an upload; then pulled, read, and trained on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.s3_server import serve_s3
from tokpipe.build import object_store, open_store
from tokpipe.dataset import TokenDataset, TokenLoader
from tokpipe.errors import ManifestError
from tokpipe.partition import plan_partition
from tokpipe.shards import read_manifest

pytestmark = pytest.mark.engine

TOKPIPE = [sys.executable, "-m", "tokpipe.cli.main"]
LAYOUT = {"seq_len": 128, "global_batch_size": 8}
PARTITION = ["--dp", "2", "--seq-len", "128", "--global-batch-size", "8"]
CORPUS, DATA = "s3://bucket/raw", "s3://bucket/data"


@pytest.fixture(scope="module")
def server(real_corpus):
    with serve_s3("bucket") as environment, pytest.MonkeyPatch.context() as patch:
        import s3fs

        for name, value in environment.items():
            patch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().put(f"{real_corpus}/", "bucket/raw/", recursive=True)
        yield environment
        s3fs.S3FileSystem.clear_instance_cache()


def run(*arguments: str) -> str:
    """The command line; returns all that it said."""
    done = subprocess.run([*TOKPIPE, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_killed_in_an_upload_then_the_same_dataset(server, real_config, real_id, faults, build_command, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(object_store.tempfile, "gettempdir", lambda: str(scratch))
    config = replace(real_config, corpus=replace(real_config.corpus, corpus=CORPUS), out=DATA)
    faults({"tokenize-3": "upload"})
    command = [*build_command(config), *PARTITION, "--workers", "2"]
    log = tmp_path / "log"
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            faults.wait_for("waiting-tokenize-3")
        finally:
            process.kill()
    store = open_store(DATA)
    with pytest.raises(ManifestError):
        read_manifest(DATA)
    orphans = [name for name in store.names("shards") if "-00003-" in name]
    assert len(orphans) == 1 and orphans[0].endswith(".bin"), "the first half of a shard is up, and no receipt names it"
    assert not store.exists("build/receipts/tokenize/00003.json")

    monkeypatch.delenv("FAULTS")
    said = log.read_text() + run(*build_command(config)[3:], *PARTITION)
    assert read_manifest(DATA).dataset_id == real_id
    assert orphans[0] not in {entry.name + suffix for entry in read_manifest(DATA).shards for suffix in (".bin", ".idx")}
    said += run("clean", DATA)
    assert not store.exists(orphans[0])
    said += run("verify", DATA) + run("inspect", DATA)
    assert "every promise is kept" in said
    assert not list(scratch.rglob("*.bin"))
    check_no_secret(server, said, store)


def check_no_secret(server, said: str, store) -> None:
    """The key and its id are in nothing that was said, written or uploaded."""
    texts = [said.encode()]
    texts += [store.read(name) for name in store.names(".") if not name.endswith((".bin", ".idx", ".arrow"))]
    texts.append(json.dumps(store.names(".")).encode())
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        assert not [text for text in texts if server[name].encode() in text]


@pytest.fixture
def built(server, real_config, build_command) -> None:
    """The dataset on the server: as the test above left it, or built now."""
    if not open_store(DATA).exists("dataset.json"):
        config = replace(real_config, corpus=replace(real_config.corpus, corpus=CORPUS), out=DATA)
        run(*build_command(config)[3:], *PARTITION)


def batches(folder: Path, rank: int) -> list[list[int]]:
    dataset = TokenDataset(folder, dp_rank=rank, dp_world_size=2, **LAYOUT)
    loader = TokenLoader(dataset, 2, max_steps=5)
    return [row for batch in loader for row in batch.labels.tolist()]


def test_pull_whole_and_share_read_like_the_local_dataset(built, real_dataset, tmp_path):
    whole, share = tmp_path / "whole", tmp_path / "share"
    assert "every one verified" in run("pull", DATA, "--out", str(whole))
    entries = read_manifest(whole).shards
    kept, broken, lost = (whole / f"{entry.name}.bin" for entry in entries[:3])
    before = kept.stat().st_mtime_ns
    broken.write_bytes(b"x" + broken.read_bytes()[1:])
    lost.unlink()
    (whole / "dataset.json").unlink()
    run("pull", DATA, "--out", str(whole))
    assert kept.stat().st_mtime_ns == before
    assert "every promise is kept" in run("verify", str(whole))
    assert batches(whole, 0) == batches(real_dataset, 0)

    run("pull", DATA, "--out", str(share), "--rank", "1")  # the layout is in the partition.json beside the dataset
    assert batches(share, 1) == batches(real_dataset, 1)
    held = {path.name for path in (share / "shards").glob("*.bin")}
    summary = plan_partition(real_dataset, dp=2, **LAYOUT)
    assert 0 < len(held) < len(entries) and summary.dp_world_size == 2


def test_train_a_few_steps_on_what_was_pulled(built, tmp_path):
    run("pull", DATA, "--out", str(tmp_path / "data"))
    recipe = Path(__file__).parents[2] / "recipes" / "tiny-cpu.toml"
    options = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "run"), "--max-steps", "3", "--json"]
    done = subprocess.run([*TOKPIPE, "train", str(recipe), *options], capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["last_step"] == 3
