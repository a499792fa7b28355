"""Every layout trains like one process: the oracle of the whole trainer.

fp32, 5 steps, losses within 2e-6 (one unit in the last place of such a loss is 4.8e-7) and gradient norms within 1e-6, validation
loss included. Labels are left out very unevenly, so an average of averages would show; plain gradient descent with clipping
would show a gradient of the wrong scale, which Adam divides away.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jobs
import pytest

from tokpipe.trainer.mesh import ParallelConfig
from tokpipe.trainer.model import ModelConfig
from tokpipe.trainer.optimizer import OptimizerConfig

pytestmark = pytest.mark.distributed
LOSS_TOLERANCE = 2e-6
NORM_TOLERANCE = 1e-6


def layout(**degrees: object) -> ParallelConfig:
    return ParallelConfig(**degrees)  # type: ignore[arg-type]


LAYOUTS = {
    "dp8-zero0": layout(dp=8),
    "dp8-zero1": layout(dp=8, zero=1),
    "dp8-zero2-accumulate2": layout(dp=8, zero=2, num_micro_batches=2),
    "dp8-zero3-accumulate2": layout(dp=8, zero=3, num_micro_batches=2),
    "dp8-zero3-full": layout(dp=8, zero=3, recompute="full"),
    "tp2-dp4-zero0": layout(tp=2, dp=4),
    "tp2-dp4-zero1-no-sequence": layout(tp=2, dp=4, zero=1, sequence_parallel=False),
    "tp2-dp4-zero2": layout(tp=2, dp=4, zero=2),
    "tp2-dp4-zero3-no-sequence": layout(tp=2, dp=4, zero=3, sequence_parallel=False),
    "tp2-dp4-zero3-whole-logits": layout(tp=2, dp=4, zero=3, vocab_parallel_loss=False),
    "pp2-dp4-gpipe-zero1": layout(pp=2, dp=4, zero=1, pipeline_schedule="gpipe", num_micro_batches=4),
    "pp2-dp4-interleaved-zero3": layout(
        pp=2, dp=4, zero=3, pipeline_schedule="interleaved", virtual_stages=2, num_micro_batches=4
    ),
    "pp4-dp2-1f1b-zero2": layout(pp=4, dp=2, zero=2, num_micro_batches=4),
    "pp4-dp2-1f1b-zero3": layout(pp=4, dp=2, zero=3, num_micro_batches=8),
    "pp4-tp2-1f1b": layout(pp=4, tp=2, num_micro_batches=4),
    "3d-1f1b-zero1-full": layout(pp=2, dp=2, tp=2, zero=1, num_micro_batches=4, recompute="full"),
    "3d-1f1b-zero2-selective": layout(pp=2, dp=2, tp=2, zero=2, num_micro_batches=4, recompute="selective"),
    "3d-interleaved-zero3-full": layout(
        pp=2,
        dp=2,
        tp=2,
        zero=3,
        num_micro_batches=4,
        recompute="full",
        pipeline_schedule="interleaved",
        virtual_stages=2,
    ),
}
SGD_LAYOUTS = [
    "dp8-zero0",
    "dp8-zero1",
    "dp8-zero2-accumulate2",
    "dp8-zero3-accumulate2",
    "tp2-dp4-zero2",
    "pp4-dp2-1f1b-zero3",
    "3d-1f1b-zero1-full",
]
# No size is a multiple of another: uneven chunks, and ranks that own nothing of a norm's 60 elements over 8.
UNEVEN = ModelConfig(num_layers=4, hidden_size=60, num_heads=6, num_kv_heads=2, ffn_size=190, vocab_size=509)


@cache
def one_process(model: ModelConfig, optimizer: OptimizerConfig, documents: bool) -> list[tuple[float, float]]:
    return jobs.run_steps(ParallelConfig(), model, optimizer, documents=documents)


def assert_like_one_process(gang, config, *, model=jobs.MODEL, optimizer=jobs.ADAMW, documents=False):
    expected = one_process(model, optimizer, documents)
    for rank, curve in enumerate(gang.run(jobs.run_steps, config, model, optimizer, 5, documents)):
        assert len(curve) == len(expected)
        for (loss, norm), (wanted_loss, wanted_norm) in zip(curve, expected, strict=True):
            assert abs(loss - wanted_loss) <= LOSS_TOLERANCE, f"rank {rank}"
            assert abs(norm - wanted_norm) <= NORM_TOLERANCE, f"rank {rank}"


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_trains_like_one_process(gang, name):
    assert_like_one_process(gang, LAYOUTS[name])


@pytest.mark.parametrize("name", SGD_LAYOUTS)
def test_layout_scales_gradients_like_one_process(gang, name):
    assert_like_one_process(gang, LAYOUTS[name], optimizer=jobs.SGD)


@pytest.mark.parametrize("name", ["dp8-zero1", "dp8-zero3-full", "tp2-dp4-zero2", "pp4-dp2-1f1b-zero3"])
def test_layout_with_sizes_that_do_not_divide(gang, name):
    assert_like_one_process(gang, LAYOUTS[name], model=UNEVEN)


@pytest.mark.parametrize("name", ["tp2-dp4-zero2", "3d-1f1b-zero1-full", "3d-interleaved-zero3-full"])
def test_layout_chunks_document_mask_with_micro_batches(gang, name):
    assert_like_one_process(gang, LAYOUTS[name], documents=True)


@pytest.mark.parametrize("name", ["tp2-dp4-zero1-no-sequence", "3d-1f1b-zero2-selective", "3d-interleaved-zero3-full"])
def test_layout_in_bf16_stays_close_to_one_process_in_bf16(gang, name):
    """bf16 keeps 8 bits, so sums in another order differ in the third digit; what is compared is dtypes and buffers."""
    config = replace(LAYOUTS[name], dtype="bf16", grad_dtype="fp32")
    expected = jobs.run_steps(ParallelConfig(dtype="bf16", grad_dtype="fp32"), num_steps=3)
    for curve in gang.run(jobs.run_steps, config, jobs.MODEL, jobs.ADAMW, 3):
        for (loss, norm), (wanted_loss, wanted_norm) in zip(curve, expected, strict=True):
            assert loss == pytest.approx(wanted_loss, abs=5e-3)
            assert norm == pytest.approx(wanted_norm, rel=2e-2)


def test_one_process_learns_and_clipping_is_active():
    curve = one_process(jobs.MODEL, jobs.SGD, documents=False)
    assert curve[4][0] < curve[0][0] - 0.3
    assert min(norm for _, norm in curve[:5]) > jobs.SGD.max_grad_norm
