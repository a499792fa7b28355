"""The grid, and every combination that is refused."""

from __future__ import annotations

import jobs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokpipe.errors import LayoutError
from tokpipe.trainer.mesh import ParallelConfig, axis_group, axis_rank, build_mesh, describe_mesh, grid_coordinates


@pytest.mark.parametrize(
    ("rank", "coordinates"),
    [
        (0, (0, 0, 0)),
        (1, (0, 0, 1)),  # tensor parallel is innermost
        (2, (0, 1, 0)),
        (4, (1, 0, 0)),  # the pipeline is outermost
        (7, (1, 1, 1)),
    ],
)
def test_grid_coordinates_of_a_cube(rank, coordinates):
    assert grid_coordinates(ParallelConfig(dp=2, tp=2, pp=2, num_micro_batches=2), rank) == coordinates


@given(dp=st.integers(1, 5), tp=st.sampled_from([1, 2, 4, 8]), pp=st.integers(1, 5))
def test_grid_gives_every_rank_its_own_place_and_keeps_tensor_parallel_inside_a_node(dp, tp, pp):
    config = ParallelConfig(dp=dp, tp=tp, pp=pp, num_micro_batches=pp)
    places = [grid_coordinates(config, rank) for rank in range(config.world_size)]
    assert len(set(places)) == dp * tp * pp
    for rank, (pp_rank, dp_rank, tp_rank) in enumerate(places):
        assert rank == (pp_rank * dp + dp_rank) * tp + tp_rank
        assert (rank - tp_rank) // config.gpus_per_node == (rank - tp_rank + tp - 1) // config.gpus_per_node


def test_grid_coordinates_of_a_rank_outside_is_an_error():
    with pytest.raises(ValueError, match=r"rank must be in \[0, 8\), got 8"):
        grid_coordinates(ParallelConfig(dp=8), 8)


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tp": 16}, "tp=16 does not divide gpus_per_node=8"),
        ({"tp": 3, "gpus_per_node": 8}, "straddle nodes"),
        ({"dp": 0}, "dp must be at least 1"),
        ({"zero": 4}, "zero must be 0, 1, 2 or 3"),
        ({"pipeline_schedule": "zigzag"}, "pipeline_schedule must be one of"),
        ({"recompute": "some"}, "recompute must be one of"),
        ({"dtype": "fp16"}, "dtype must be one of"),
        ({"grad_dtype": "bf16"}, "grad_dtype must be one of"),
        ({"pp": 2, "virtual_stages": 2, "num_micro_batches": 4}, "virtual_stages=2 needs pipeline_schedule='interleaved'"),
        ({"virtual_stages": 2, "pipeline_schedule": "interleaved"}, "pp > 1"),
        ({"pp": 2, "pipeline_schedule": "interleaved", "num_micro_batches": 2}, "needs virtual_stages of 2 or more"),
        ({"pp": 4, "num_micro_batches": 3}, "1f1b needs at least pp=4 micro-batches"),
        (
            {"pp": 2, "pipeline_schedule": "interleaved", "virtual_stages": 2, "num_micro_batches": 3},
            "num_micro_batches=3 is no multiple",
        ),
        ({"pp": 2, "pipeline_schedule": "interleaved-zero-bubble", "zero": 3}, "silently wrong"),
        ({"pp": 2, "pipeline_schedule": "zero-bubble"}, "outside autograd's hooks"),
        ({"tp": 2, "recompute": "selective", "compile": True}, "saves the device mesh"),
    ],
)
def test_impossible_or_wrong_layouts_are_refused_with_the_reason(degrees, message):
    with pytest.raises(LayoutError, match=message):
        ParallelConfig(**degrees)


def test_build_mesh_without_processes_is_none():
    assert build_mesh(ParallelConfig(), world_size=1) is None
    assert axis_rank(None, "tp") == 0
    assert axis_group(None, "dp") is None


def test_build_mesh_of_another_size_is_refused():
    with pytest.raises(LayoutError, match="needs 8 ranks, but 4 were started"):
        build_mesh(ParallelConfig(dp=8), world_size=4)


def test_describe_mesh_says_which_axis_uses_which_network():
    lines = describe_mesh(ParallelConfig(dp=4, tp=8, pp=2, zero=3, num_micro_batches=8)).splitlines()
    assert lines[1].split()[:4] == ["pp", "2", "32", "InfiniBand"]
    assert lines[2].split()[:4] == ["dp", "4", "8", "InfiniBand"]
    assert lines[3].split()[:4] == ["tp", "8", "1", "NVLink"]
    assert "0:(0, 0, 0)" in lines[4]
    assert "and 48 more" in lines[4]


def test_describe_mesh_of_one_node_is_all_nvlink():
    text = describe_mesh(ParallelConfig(dp=2, tp=2, pp=2, num_micro_batches=2))
    assert "InfiniBand" not in text
    assert text.count("NVLink") == 3


@pytest.mark.distributed
def test_mesh_of_processes_has_the_coordinates_that_are_printed(gang):
    config = ParallelConfig(dp=2, tp=2, pp=2, num_micro_batches=2)
    assert gang.run(jobs.coordinates, config) == [grid_coordinates(config, rank) for rank in range(8)]
