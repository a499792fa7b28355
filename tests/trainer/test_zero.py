"""ZeRO 0 to 2: what travels, when, and that chunks of any shape come back whole."""

from __future__ import annotations

import jobs
import jobs_bytes
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tokpipe.trainer.mesh import ParallelConfig
from tokpipe.trainer.weights import OwnedWeight, owned_weight

SCALARS = 3  # all-reduces of the loss, the number of tokens and the gradient norm
GROUPS = 6  # embedding, 4 blocks, norm and head


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        ({"zero": 0}, {"all_reduce": GROUPS + SCALARS}),
        ({"zero": 1}, {"all_reduce": SCALARS, "reduce_scatter": GROUPS, "all_gather": GROUPS}),
        ({"zero": 2}, {"all_reduce": SCALARS, "reduce_scatter": GROUPS, "all_gather": GROUPS}),
        # Stage 1 reduces once a step, stage 2 once a micro-batch: it may not keep whole gradients.
        ({"zero": 1, "num_micro_batches": 2}, {"all_reduce": SCALARS, "reduce_scatter": GROUPS, "all_gather": GROUPS}),
        ({"zero": 2, "num_micro_batches": 2}, {"all_reduce": SCALARS, "reduce_scatter": 2 * GROUPS, "all_gather": GROUPS}),
        # Gathered for the forward pass and again for the backward pass.
        ({"zero": 3}, {"all_reduce": SCALARS, "reduce_scatter": GROUPS, "all_gather": 2 * GROUPS}),
        ({"zero": 3, "recompute": "full"}, {"all_reduce": SCALARS, "reduce_scatter": GROUPS, "all_gather": 2 * GROUPS}),
    ],
)
def test_step_sends_the_collectives_of_its_stage(gang, degrees, expected):
    for counts in gang.run(jobs_bytes.collectives_per_step, ParallelConfig(dp=8, **degrees)):
        assert counts == expected


@pytest.mark.distributed
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_reduction_of_a_block_is_issued_before_the_backward_pass_below_it(gang, zero):
    for events in gang.run(jobs_bytes.backward_order, ParallelConfig(dp=8, zero=zero)):
        assert events.count("reduce") == GROUPS
        for below in (2, 1, 0):
            done = events[: events.index(f"backward {below}")]
            assert done.count("reduce") >= 4 - below, events  # the head's, and every block's above the one right above


@pytest.mark.distributed
@pytest.mark.parametrize("grad_dtype", ["same", "fp32"])
def test_bf16_forward_pass_is_the_same_to_the_bit_in_all_stages(gang, grad_dtype):
    """Stage 3 gathers and casts behind the model's back; rotary angles, for one, have to stay fp32."""
    configs = [ParallelConfig(dp=8, zero=zero, dtype="bf16", grad_dtype=grad_dtype) for zero in (0, 2, 3)]
    first = [gang.run(jobs.run_steps, config, jobs.MODEL, jobs.ADAMW, 1)[0][0][0] for config in configs]
    assert first[0] == first[1] == first[2]


@pytest.mark.distributed
def test_fp32_gradients_of_a_bf16_model_do_not_drift_from_one_process(gang):
    """Sums over micro-batches and ranks are fp32, so a step's gradient norm hardly depends on the layout."""
    wanted = jobs.run_steps(ParallelConfig(dtype="bf16", grad_dtype="fp32"), num_steps=1)[0]
    for config in (
        ParallelConfig(dp=8, zero=2, dtype="bf16", grad_dtype="fp32", num_micro_batches=2),
        ParallelConfig(dp=8, zero=3, dtype="bf16", grad_dtype="fp32"),
    ):
        loss, norm = gang.run(jobs.run_steps, config, jobs.MODEL, jobs.ADAMW, 1)[0][0]
        assert loss == pytest.approx(wanted[0], abs=2e-3)
        assert norm == pytest.approx(wanted[1], rel=5e-3)


def one_weight(shape: tuple[int, ...], num_chunks: int, chunk: int, dim: int) -> OwnedWeight:
    param = nn.Parameter(torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape))
    return OwnedWeight(name="w", param=param, dim=dim, num_chunks=num_chunks, chunk=chunk, mesh=None, num_holders=1)


@given(rows=st.integers(1, 13), columns=st.integers(1, 7), num_chunks=st.integers(1, 9), dim=st.integers(0, 1))
def test_split_and_join_are_inverse_and_chunks_cover_every_element_once(rows, columns, num_chunks, dim):
    owned = []
    for chunk in range(num_chunks):
        weight = one_weight((rows, columns), num_chunks, chunk, dim)
        local = weight.param.detach()
        chunks = weight.split(local)
        assert chunks.shape == (num_chunks, *weight.chunk_shape)
        assert torch.equal(weight.join(chunks), local)
        assert torch.equal(weight.without_padding(chunks[chunk]), weight.owned(local))
        owned.append(weight.owned(local).flatten())
    assert sorted(torch.cat(owned).tolist()) == list(range(rows * columns))


def test_owned_chunks_are_those_of_torch_chunk():
    local = one_weight((10, 3), 4, 0, 0).param.detach()
    for chunk, expected in enumerate(local.chunk(4)):
        assert torch.equal(one_weight((10, 3), 4, chunk, 0).owned(local), expected)


def test_one_process_owns_whole_parameters():
    param = nn.Parameter(torch.zeros(3, 2))
    weight = owned_weight("w", param, ParallelConfig(), None)
    assert weight.owned(param.detach()).shape == (3, 2)
    assert weight.num_holders == 1
    assert weight.describe(param) is param
