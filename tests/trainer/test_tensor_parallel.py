"""Tensor parallel: what is cut, what travels, and the loss on vocabulary shards."""

from __future__ import annotations

import jobs
import jobs_bytes
import jobs_tensor
import pytest
import torch

from tokpipe.errors import LayoutError
from tokpipe.trainer.mesh import ParallelConfig
from tokpipe.trainer.model import ModelConfig
from tokpipe.trainer.tensor_parallel import check_tensor_parallel

LAYERS = jobs.MODEL.num_layers
DATA_PARALLEL = 6 + 3  # gradients of 6 groups; tokens, loss and norm
LOSS = 2  # the largest logit; the label's logit and the normalizer in one


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        # Two all-reduces a block forward and two backward; the embedding's forward, the head's backward.
        ({"sequence_parallel": False}, {"all_reduce": DATA_PARALLEL + LOSS + 4 * LAYERS + 2}),
        # Each becomes an all-gather and a reduce-scatter. Norms saw a part of the sequence: their gradients are added up.
        (
            {},
            {
                "all_reduce": DATA_PARALLEL + LOSS + 2 * LAYERS + 1,
                "all_gather": 4 * LAYERS + 2,
                "reduce_scatter": 4 * LAYERS + 2,
            },
        ),
        # The forward pass of each block once more, but for its last product and what follows it.
        (
            {"recompute": "full"},
            {
                "all_reduce": DATA_PARALLEL + LOSS + 2 * LAYERS + 1,
                "all_gather": 6 * LAYERS + 2,
                "reduce_scatter": 5 * LAYERS + 2,
            },
        ),
        # The attention core sends nothing, so running it again sends nothing.
        (
            {"recompute": "selective"},
            {
                "all_reduce": DATA_PARALLEL + LOSS + 2 * LAYERS + 1,
                "all_gather": 4 * LAYERS + 2,
                "reduce_scatter": 4 * LAYERS + 2,
            },
        ),
    ],
)
def test_step_sends_what_the_paper_says(gang, degrees, expected):
    for counts in gang.run(jobs_bytes.collectives_per_step, ParallelConfig(dp=4, tp=2, **degrees)):
        assert counts == expected


@pytest.mark.distributed
@pytest.mark.parametrize("vocab_size", [64, 61])
def test_vocab_parallel_loss_equals_the_plain_one(gang, vocab_size):
    for loss, gradient in gang.run(jobs_tensor.loss_difference, vocab_size, torch.float32):
        assert loss <= 1e-4  # of a sum near 400
        assert gradient <= 1e-6


@pytest.mark.distributed
def test_vocab_parallel_loss_of_bf16_logits_is_computed_in_fp32(gang):
    for loss, gradient in gang.run(jobs_tensor.loss_difference, 64, torch.bfloat16):
        assert loss <= 1e-4
        assert gradient <= 2**-7


@pytest.mark.distributed
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_weights_that_are_not_cut_stay_equal_in_a_group(gang, sequence_parallel):
    sums = gang.run(jobs_tensor.replicated_weights, ParallelConfig(dp=4, tp=2, zero=1, sequence_parallel=sequence_parallel))
    assert all(each == sums[0] for each in sums)


@pytest.mark.distributed
def test_matrices_are_cut_by_columns_then_rows(gang):
    shapes = gang.run(jobs_tensor.local_shapes, ParallelConfig(dp=4, tp=2))[1]
    assert shapes["embedding.weight"] == (256, 64)
    assert shapes["layers.0.attention.query.weight"] == (32, 64)
    assert shapes["layers.0.attention.key.weight"] == (16, 64)
    assert shapes["layers.0.attention.output.weight"] == (64, 32)
    assert shapes["layers.0.ffn.gate.weight"] == (96, 64)
    assert shapes["layers.0.ffn.down.weight"] == (64, 96)
    assert shapes["layers.0.ffn_norm.weight"] == (64,)
    assert shapes["head.weight"] == (256, 64)


def test_a_degree_that_splits_heads_is_refused():
    model = ModelConfig(num_layers=1, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_size=64, vocab_size=64)
    check_tensor_parallel(model, ParallelConfig(tp=2))
    with pytest.raises(LayoutError, match="tp=4 does not divide num_kv_heads=2"):
        check_tensor_parallel(model, ParallelConfig(tp=4))


@pytest.mark.distributed
def test_a_sequence_that_cannot_be_cut_is_refused_on_every_rank(gang):
    """Gloo would end the processes: ranks send each other tensors of different shapes."""
    for text in gang.run(jobs_tensor.refusal_of_a_sequence, ParallelConfig(dp=4, tp=2), 33):
        assert "seq_len=33 over tp=2" in text
