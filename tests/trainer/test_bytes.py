"""Bytes of model state per rank, for all four stages, exactly: the chapter's 16Ψ, 4Ψ + 12Ψ/N, 2Ψ + 14Ψ/N and 16Ψ/N.

bf16 parameters and gradients, fp32 master, momentum and variance, counted after the backward pass of a pure data-parallel run
whose sizes divide, Adam's step counters aside. The model's own account is checked against every live tensor in the process.
"""

from __future__ import annotations

import jobs
import jobs_bytes
import pytest

from tokpipe.trainer.mesh import ParallelConfig

pytestmark = pytest.mark.distributed
N = 8
PSI = jobs.MODEL.num_parameters


@pytest.mark.parametrize(
    ("zero", "grad_dtype", "parameters", "gradients", "optimizer"),
    [
        (0, "same", 2.0, 2.0, 12.0),  # 16
        (1, "same", 2.0, 2.0, 12 / N),  # 4 + 12/N = 5.5
        (2, "same", 2.0, 2 / N, 12 / N),  # 2 + 14/N = 3.75
        (3, "same", 2 / N, 2 / N, 12 / N),  # 16/N = 2
        (0, "fp32", 2.0, 4.0, 12.0),  # 18
        (1, "fp32", 2.0, 4.0, 12 / N),
        (2, "fp32", 2.0, 4 / N, 12 / N),
        (3, "fp32", 4 / N, 4 / N, 8 / N),  # fp32 shards are their own masters: 16/N again, cut differently
    ],
)
def test_state_holds_the_bytes_of_its_stage(gang, zero, grad_dtype, parameters, gradients, optimizer):
    config = ParallelConfig(dp=N, zero=zero, dtype="bf16", grad_dtype=grad_dtype)
    for counted, _ in gang.run(jobs_bytes.held_after_backward, config):
        assert counted.parameters == parameters * PSI
        assert counted.gradients == gradients * PSI
        assert counted.optimizer == optimizer * PSI


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_nothing_else_of_the_models_size_is_alive(gang, zero):
    counted, live = gang.run(jobs_bytes.live_after_backward, ParallelConfig(dp=N, zero=zero, dtype="bf16"))[0]
    assert 0 <= live - counted.total <= 0.04 * PSI  # step counters, loss, positions


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_state_of_a_3d_grid_is_sixteen_bytes_over_all_axes(gang, zero):
    config = ParallelConfig(dp=2, tp=2, pp=2, zero=zero, dtype="bf16", num_micro_batches=2)
    total = {0: 16, 1: 4 + 12 / 2, 2: 2 + 14 / 2, 3: 16 / 2}[zero]
    for rank, (counted, stage_parameters) in enumerate(gang.run(jobs_bytes.held_after_backward, config)):
        # Norms are whole on both tensor-parallel ranks: 64 elements of 2 a block and the last one, half of which is no saving.
        norms = 2 * 2 * 64 + (64 if rank >= 4 else 0)
        held = stage_parameters / 2 + norms / 2
        assert counted.total == pytest.approx(total * held, rel=1e-12)
