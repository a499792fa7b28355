from __future__ import annotations

import json

import pytest

from tokpipe.dataset import TokenDataset, TokenLoader
from tokpipe.errors import ManifestError, MissingShardError, PartitionError, StateMismatchError, VerificationError
from tokpipe.partition import plan_partition, stage_ranks
from tokpipe.shards import read_manifest

LAYOUT = {"seq_len": 8, "global_batch_size": 12, "weights": {"en": 0.5, "hi": 0.5}}


@pytest.fixture
def folder(tmp_path, dataset_writer):
    shards = [(source, False, [40 + 7 * i, 60, 33]) for i in range(6) for source in ("en", "hi")]
    dataset_writer(tmp_path / "data", [*shards, ("en", True, [50]), ("hi", True, [50])])
    return tmp_path / "data"


def rows(loader):
    return [row for batch in loader for row in batch.labels.tolist()]


def test_staged_share_of_each_rank_gives_the_same_batches(folder, tmp_path):
    summary = plan_partition(folder, dp=4, **LAYOUT)
    copied = []
    for rank in range(4):
        staged = tmp_path / f"rank{rank}"
        entries = stage_ranks(folder, staged, summary, [rank])
        copied.append(sum(not entry.held_out for entry in entries))
        whole = TokenDataset(folder, dp_rank=rank, dp_world_size=4, max_steps=60, **LAYOUT)
        local = TokenDataset(staged, dp_rank=rank, dp_world_size=4, max_steps=60, **LAYOUT)
        assert local.dataset_id == whole.dataset_id
        assert whole.plan.epochs_at(60)["en"] > 2
        assert rows(TokenLoader(local, 3)) == rows(TokenLoader(whole, 3))
        state = TokenLoader(whole, 3).state_dict()
        TokenLoader(local, 3).load_state_dict(state)
        held_out = {"seq_len": 8, "global_batch_size": 4, "held_out": True}
        assert rows(TokenLoader(TokenDataset(staged, **held_out), 1)) == rows(TokenLoader(TokenDataset(folder, **held_out), 1))
    assert max(copied) < 12
    assert sum(copied) >= 12


def test_several_ranks_share_a_node(folder, tmp_path):
    summary = plan_partition(folder, dp=4, **LAYOUT)
    stage_ranks(folder, tmp_path / "node", summary, [2, 3])
    for rank in (2, 3):
        expected = TokenDataset(folder, dp_rank=rank, dp_world_size=4, max_steps=9, **LAYOUT)
        found = TokenDataset(tmp_path / "node", dp_rank=rank, dp_world_size=4, max_steps=9, **LAYOUT)
        assert rows(TokenLoader(found, 3)) == rows(TokenLoader(expected, 3))


REFUSALS = [
    ({"dp_rank": 0}, "it holds the ranks 1, asked is 0"),
    ({"dp_world_size": 2}, "dp_world_size is 4 staged and 2 asked"),
    ({"global_batch_size": 24}, "global_batch_size is 12 staged and 24 asked"),
    ({"seq_len": 4}, "seq_len is 8 staged and 4 asked"),
    ({"weights": None}, "weights is {'en': 0.5, 'hi': 0.5} staged and None asked"),
    ({"seed": 1}, "seed or order"),
]


@pytest.mark.parametrize(("change", "message"), REFUSALS, ids=[message[:20] for _, message in REFUSALS])
def test_another_plan_is_refused_there(folder, tmp_path, change, message):
    stage_ranks(folder, tmp_path / "out", plan_partition(folder, dp=4, **LAYOUT), [1])
    with pytest.raises(StateMismatchError, match=message):
        TokenDataset(tmp_path / "out", **({"dp_rank": 1, "dp_world_size": 4} | LAYOUT | change))


def test_another_phase_is_refused_there(folder, tmp_path):
    stage_ranks(folder, tmp_path / "out", plan_partition(folder, dp=4, **LAYOUT), [1])
    loader = TokenLoader(TokenDataset(tmp_path / "out", dp_rank=1, dp_world_size=4, **LAYOUT), 3)
    for _ in zip(loader, range(2), strict=False):
        pass
    with pytest.raises(StateMismatchError, match="it holds one phase, asked are 2"):
        loader.change(global_batch_size=24)


def test_staging_goes_on_after_an_interruption_and_repairs(folder, tmp_path):
    summary = plan_partition(folder, dp=4, **LAYOUT)
    out = tmp_path / "out"
    entries = stage_ranks(folder, out, summary, [1])
    kept, broken = out / (entries[0].name + ".bin"), out / (entries[1].name + ".bin")
    before = kept.stat().st_mtime_ns
    broken.write_bytes(b"x" + broken.read_bytes()[1:])
    (out / "staged.json").unlink()
    stage_ranks(folder, out, summary, [1])
    assert kept.stat().st_mtime_ns == before
    assert broken.read_bytes() == (folder / (entries[1].name + ".bin")).read_bytes()
    assert not list(out.glob("**/*.part"))


def test_damaged_original_is_not_staged(folder, tmp_path):
    summary = plan_partition(folder, dp=4, **LAYOUT)
    path = folder / (summary.space.shards[summary.shares[1][0].pieces[0].shard].name + ".bin")
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(VerificationError, match=path.stem):
        stage_ranks(folder, tmp_path / "out", summary, [1])
    assert not (tmp_path / "out" / "staged.json").exists()


def test_wrong_targets_and_ranks_are_refused(folder, tmp_path, dataset_writer):
    summary = plan_partition(folder, dp=4, **LAYOUT)
    with pytest.raises(PartitionError, match=r"in \[0, 4\), got \[4\]"):
        stage_ranks(folder, tmp_path / "out", summary, [4])
    with pytest.raises(PartitionError, match="the dataset itself"):
        stage_ranks(folder, folder, summary, [0])
    dataset_writer(tmp_path / "other", [("en", False, [99])])
    with pytest.raises(PartitionError, match=read_manifest(folder).dataset_id):
        stage_ranks(folder, tmp_path / "other", summary, [0])


def test_shard_outside_of_the_share_is_not_there(folder, tmp_path):
    stage_ranks(folder, tmp_path / "out", plan_partition(folder, dp=4, **LAYOUT), [0])
    record = json.loads((tmp_path / "out" / "staged.json").read_text())
    record["ranks"] = [3]
    (tmp_path / "out" / "staged.json").write_text(json.dumps(record))
    dataset = TokenDataset(tmp_path / "out", dp_rank=3, dp_world_size=4, **LAYOUT)
    with pytest.raises(MissingShardError):
        rows(TokenLoader(dataset, 3, max_steps=9))


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 9}'])
def test_unreadable_record_is_an_error(folder, tmp_path, text):
    stage_ranks(folder, tmp_path / "out", plan_partition(folder, dp=4, **LAYOUT), [0])
    (tmp_path / "out" / "staged.json").write_text(text)
    with pytest.raises(ManifestError, match="Stage the share again"):
        TokenDataset(tmp_path / "out", dp_rank=0, dp_world_size=4, **LAYOUT)
