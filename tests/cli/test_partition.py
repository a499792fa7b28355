from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tokpipe.cli.layout_options import parse_ranks, parse_weights
from tokpipe.cli.main import cli
from tokpipe.dataset import TokenDataset
from tokpipe.errors import PartitionError, StateMismatchError
from tokpipe.partition import read_staged
from tokpipe.shards import read_manifest, verify_dataset

LAYOUT = ["--dp", "2", "--seq-len", "8", "--global-batch-size", "4"]


@pytest.fixture
def data(tmp_path, dataset_writer):
    dataset_writer(tmp_path / "data", [("en", False, [100, 101]), ("hi", False, [300])])
    return tmp_path / "data"


def run(*arguments):
    return CliRunner().invoke(cli, ["partition", *map(str, arguments)])


def test_prints_and_saves(data):
    done = run(data, *LAYOUT, "--weights", "en=0.5,hi=0.5")
    assert done.exit_code == 0, done.output
    assert "2 data-parallel ranks" in done.stdout
    assert "rank 1: 1 lanes of en" in done.stdout
    assert "saved" in done.stderr
    assert json.loads((data / "partition.json").read_text())["phase"]["weights"] == {"en": 0.5, "hi": 0.5}


def test_json_of_one_rank(data):
    done = run(data, *LAYOUT, "--json", "--rank", "1", "--seed", "7", "--order", "full")
    record = json.loads(done.stdout)
    assert [rank["rank"] for rank in record["ranks"]] == [1]
    assert (record["seed"], record["order"]) == (7, "full")


def test_stage_copies_what_a_rank_reads(data, tmp_path):
    done = run(data, *LAYOUT, "--rank", "0", "--stage", tmp_path / "node")
    assert done.exit_code == 0, done.output
    assert "staged 2 shards" in done.stdout
    layout = {"seq_len": 8, "global_batch_size": 4, "dp_world_size": 2}
    TokenDataset(tmp_path / "node", dp_rank=0, **layout).read(0, 0, 2)
    with pytest.raises(StateMismatchError):
        TokenDataset(tmp_path / "node", dp_rank=1, **layout)


def test_stage_prints_its_record_as_json(data, tmp_path):
    done = run(data, *LAYOUT, "--rank", "0", "--stage", tmp_path / "node", "--json")
    assert json.loads(done.stdout) == read_staged(tmp_path / "node")


def test_a_staged_share_is_verified_as_what_it_is(data, tmp_path):
    layout = ["--dp", "4", "--seq-len", "8", "--global-batch-size", "4"]
    run(data, *layout, "--rank", "0", "--stage", tmp_path / "node")
    manifest = read_manifest(tmp_path / "node")
    staged = read_staged(tmp_path / "node")["shards"]
    assert 0 < len(staged) < len(manifest.shards)
    report = verify_dataset(tmp_path / "node", only=staged)
    assert report.num_shards == len(staged) and not [p for p in report.problems if p.kind != "tokenizer"]
    (tmp_path / "node" / f"{staged[0]}.bin").unlink()
    kinds = {problem.path: problem.kind for problem in verify_dataset(tmp_path / "node", only=staged).problems}
    assert kinds[f"{staged[0]}.bin"] == "missing"


def test_what_cannot_be_done_is_an_error(data, tmp_path):
    done = run(data, "--dp", "3", "--seq-len", "8", "--global-batch-size", "4")
    assert isinstance(done.exception, PartitionError)
    assert "nearest that do: 3 and 6" in str(done.exception)
    assert run(data, *LAYOUT, "--stage", tmp_path / "node").exit_code == 2
    assert run(data, "--dp", "2").exit_code == 2


def test_parse_weights():
    assert parse_weights("hi=0.5, en=1") == {"hi": 0.5, "en": 1.0}
    assert parse_weights("") is None
    for wrong in ("hi", "hi=x", "=1"):
        with pytest.raises(PartitionError, match="must look like"):
            parse_weights(wrong)


def test_parse_ranks():
    assert parse_ranks("3") == [3]
    assert parse_ranks("0-2,5,1") == [0, 1, 2, 5]
    for wrong in ("a", "1-", "-1", "1-b"):
        with pytest.raises(PartitionError, match="--rank must be"):
            parse_ranks(wrong)
    with pytest.raises(PartitionError, match="--rank 5-2 is an empty range"):
        parse_ranks("0,5-2")
