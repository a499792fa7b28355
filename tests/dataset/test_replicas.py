from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tokpipe.dataset import TokenDataset, TokenLoader
from tokpipe.dataset.replicas import data_rank
from tokpipe.errors import PartitionError


@pytest.mark.distributed
def test_eight_ranks_read_the_same_batch_inside_each_replica_and_a_planted_difference_is_named(tmp_path, dataset_writer):
    dataset_writer(tmp_path / "data", [("en", False, [300, 5, 400]), ("hi", False, [200])])
    script = Path(__file__).with_name("replica_ranks.py")
    (tmp_path / "results").mkdir()
    done = subprocess.run(
        [sys.executable, script, tmp_path / "data", tmp_path / "results"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / "results" / f"{rank}.json").read_text()) for rank in range(8)]
    # Ranks count through (pp, dp, tp): replica 0 is 0, 1, 4, 5 and replica 1 is 2, 3, 6, 7.
    assert [rank["dp_rank"] for rank in found] == [0, 0, 1, 1, 0, 0, 1, 1]
    for dp_rank in range(2):
        dataset = TokenDataset(tmp_path / "data", seq_len=8, global_batch_size=8, dp_rank=dp_rank, dp_world_size=2)
        expected = [row for batch in TokenLoader(dataset, 2, max_steps=3) for row in batch.input_ids.tolist()]
        assert all(rank["rows"] == expected for rank in found if rank["dp_rank"] == dp_rank)
    for rank in found:
        assert "8 processes run and all would read the same" in rank["without_rank"]
        assert ("planted" in rank) == (rank["dp_rank"] == 0)
    assert "step 2: the ranks [0, 1, 4, 5] form data-parallel replica 0" in found[0]["planted"]
    assert "but rank 5 holds another" in found[0]["planted"]


class FakeMesh:
    """As much of a DeviceMesh as the data axis needs."""

    def __init__(self, names):
        self.mesh_dim_names = names

    def size(self, axis):
        return (2, 4)[axis]

    def get_local_rank(self, name):
        return {"pp": 1, "dp": 3}[name]


def test_only_the_data_axis_counts():
    assert data_rank(None, None, FakeMesh(("pp", "dp"))) == (3, 4)
    assert data_rank(None, None, None) == (0, 1)
    assert data_rank(2, 3, None) == (2, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, FakeMesh(("pp", "dp"))), "not both"),
        ((None, None, FakeMesh(("pp", "tp"))), 'no axis "dp", only pp, tp'),
        ((None, None, FakeMesh(None)), "axes without names"),
        ((None, 4, None), "go together, got None and 4"),
    ],
)
def test_half_a_rank_or_a_mesh_without_data_axis_is_refused(arguments, message):
    with pytest.raises(PartitionError, match=message):
        data_rank(*arguments)
