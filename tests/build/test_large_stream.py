"""A compressed stream of 3 GB is restarted in its middle and goes on from its last piece."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tokpipe.build import open_store
from tokpipe.build.receipts import FOLDER
from tokpipe.shards import read_manifest, verify_dataset

TEXT_BYTES = 3_000_000_000


@pytest.fixture(scope="module")
def large(tmp_path_factory, documents) -> Path:
    """One .zst of 3 GB of text: a numbered line in front of each repeated block, so that no two pieces are equal."""
    folder = tmp_path_factory.mktemp("large")
    lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for texts in documents.values() for text in texts]
    block = "".join(lines * 40).encode()
    with pa.CompressedOutputStream(str(folder / "all.jsonl.zst"), "zstd") as file:
        for number in range(TEXT_BYTES // len(block) + 1):
            file.write(json.dumps({"text": f"block number {number}"}).encode() + b"\n")
            file.write(block)
    return folder


@pytest.mark.slow
def test_three_gigabytes_of_zstd_go_on_in_the_middle(large, model, tmp_path, files_of):
    def command(out: Path) -> list[str]:
        options = ["--tokenizer", str(model), "--out", str(out), "--piece-bytes", "500MB", "--workers", "1"]
        return [sys.executable, "-m", "tokpipe", "tokenize", str(large), *options]

    out, whole = tmp_path / "killed", tmp_path / "whole"
    subprocess.run(command(whole), check=True)
    process = subprocess.Popen(command(out))
    while len(open_store(str(out)).names(FOLDER)) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    published = sorted((out / "shards").glob("*-000.bin")) + sorted((out / "shards").glob("*-001.bin"))
    before = {path: path.stat().st_mtime_ns for path in published}
    assert len(before) == 2
    subprocess.run(command(out), check=True)
    assert {path: path.stat().st_mtime_ns for path in published} == before, "finished pieces are not written again"
    assert files_of(out) == files_of(whole)
    assert read_manifest(out).dataset_id == read_manifest(whole).dataset_id
    verify_dataset(out)
