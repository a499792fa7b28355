from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tokpipe.cli.main import cli
from tokpipe.partition import plan_partition, save_partition
from tokpipe.shards import read_manifest


@pytest.fixture
def folder(tmp_path, dataset_writer):
    dataset_writer(tmp_path / "data", [("en", False, [40 + 7 * i, 60, 33]) for i in range(6)])
    return tmp_path / "data"


def pull(*arguments: str):
    return CliRunner().invoke(cli, ["pull", *arguments])


def test_whole_from_a_folder(folder, tmp_path, caplog):
    caplog.set_level("INFO")
    done = pull(str(folder), "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert "6 shards" in done.stdout and "every one verified" in done.stdout
    assert "pull: 100%" in caplog.text
    assert read_manifest(tmp_path / "out") == read_manifest(folder)


def test_share_with_the_layout_of_partition_json(folder, tmp_path):
    save_partition(folder, plan_partition(folder, dp=3, seq_len=8, global_batch_size=6))
    done = pull(str(folder), "--out", str(tmp_path / "out"), "--rank", "0-1", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["ranks"] == [0, 1] and 0 < result["shards"] < 6
    assert json.loads((tmp_path / "out" / "staged.json").read_text())["dp_world_size"] == 3


def test_share_without_a_layout_says_what_to_give(folder, tmp_path):
    done = pull(str(folder), "--out", str(tmp_path / "out"), "--rank", "0")
    assert done.exit_code == 1
    assert "give --seq-len and --global-batch-size" in str(done.exception)
