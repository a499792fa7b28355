from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokpipe.estimate import SHAPES, nearest_shape, stage_params, zero_state
from tokpipe.estimate.memory import gpus_to_hold


@pytest.mark.parametrize(
    ("zero", "expected", "remark"),
    [
        (0, 112e9, "everything on every GPU"),
        (1, 29.3125e9, "4 + 12/64 bytes"),
        (2, 15.53125e9, "2 + 14/64 bytes"),
        (3, 1.75e9, "16/64 bytes"),
    ],
)
def test_zero_state_of_7b_on_64_gpus(zero, expected, remark):
    assert zero_state(7e9, dp=64, zero=zero).total == expected, remark


def test_zero_state_with_fp32_gradients_is_18_bytes():
    assert zero_state(1, dp=1, zero=0, grad_bytes=4).total == 18


@pytest.mark.parametrize(("dp", "zero"), [(0, 1), (4, 4), (4, -1)])
def test_zero_state_refuses_nonsense(dp, zero):
    with pytest.raises(ValueError, match="must be"):
        zero_state(1e9, dp=dp, zero=zero)


@given(st.integers(1, 4096), st.integers(1, 10**12))
def test_zero_state_never_grows_with_the_stage_and_one_rank_has_nothing_to_shard(dp, params):
    totals = [zero_state(params, dp=dp, zero=zero).total for zero in range(4)]
    assert totals == sorted(totals, reverse=True)
    assert dp > 1 or len(set(totals)) == 1


@pytest.mark.parametrize(
    ("name", "params", "remark"),
    [
        ("llama-7b", 6_738_415_616, "the published checkpoint's count"),
        ("llama-13b", 13_015_864_320, "the published checkpoint's count"),
        ("llama-70b", 68_976_648_192, "Llama 2 70B with 8 key-value heads"),
        ("gpt3-175b", 174_604_259_328, "175B by name; 2,048 positions, tied head"),
    ],
)
def test_num_params_of_published_shapes(name, params, remark):
    assert SHAPES[name].num_params == params, remark


@pytest.mark.parametrize(
    ("params", "name"), [(7e9, "llama-7b"), (6.5e9, "llama-7b"), (1e9, "llama-7b"), (30e9, "llama-13b"), (1e12, "gpt3-175b")]
)
def test_nearest_shape(params, name):
    assert nearest_shape(params).name == name


@given(st.sampled_from(["llama-7b", "llama-13b", "llama-70b"]), st.integers(1, 32))
def test_stage_params_add_up_to_the_model(name, pp):
    shape = SHAPES[name]
    stages = stage_params(shape, tp=1, pp=pp)
    assert len(stages) == pp and sum(stages) == shape.num_params


@pytest.mark.parametrize(("layers", "pp", "v"), [(6, 4, 1), (7, 4, 1), (32, 3, 1), (10, 2, 2), (11, 2, 3)])
def test_stages_hold_the_layers_that_the_trainer_gives_them(layers, pp, v):
    pipeline = pytest.importorskip("tokpipe.trainer.pipeline_parallel")
    mesh = pytest.importorskip("tokpipe.trainer.mesh")
    config = mesh.ParallelConfig(
        pp=pp, virtual_stages=v, pipeline_schedule="interleaved" if v > 1 else "1f1b", num_micro_batches=pp
    )
    stages = pipeline.split_layers(layers, pp * v)
    expected = [sum(len(stages[stage]) for stage in pipeline.stages_of_rank(rank, config)) for rank in range(pp)]
    shape = replace(SHAPES["llama-7b"], num_layers=layers)
    counts = list(stage_params(shape, tp=1, pp=pp, virtual_stages=v))
    counts[0] -= shape.embedding_params
    counts[-1] -= shape.head_params
    assert counts == [number * shape.layer_params for number in expected]


def test_stage_params_repeat_a_tied_embedding_on_the_last_stage():
    shape = SHAPES["gpt3-175b"]
    assert sum(stage_params(shape, tp=1, pp=8)) == shape.num_params + shape.vocab_size * shape.hidden_size


def test_stage_params_refuses_more_stages_than_layers():
    with pytest.raises(ValueError, match="32 layers"):
        stage_params(SHAPES["llama-7b"], tp=1, pp=33)


def test_gpus_to_hold_gpt3():
    assert gpus_to_hold(2.8e12, 80e9) == 35
