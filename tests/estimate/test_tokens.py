from __future__ import annotations

import numpy as np
import pytest

from tokpipe.estimate import chinchilla_tokens, corpus_bytes, flops_per_token, mfu, num_steps, peak_flops, token_bytes
from tokpipe.estimate.communication import data_parallel_traffic


def test_token_budget_of_7b():
    assert chinchilla_tokens(7e9) == 140e9
    assert corpus_bytes(1e12, 32_000) == 2e12
    assert num_steps(1e12, 2048 * 2048) == (238_419, 238_418)


@pytest.mark.parametrize(("vocab", "size"), [(32_000, 2), (65_500, 2), (65_501, 4), (128_256, 4)])
def test_token_bytes(vocab, size):
    assert token_bytes(vocab) == size


def test_token_bytes_keeps_the_limit_of_the_shard_writer():
    shards = pytest.importorskip("tokpipe.shards.format")
    for vocab in (65_499, 65_500, 65_501, 65_536):
        assert np.dtype(shards.dtype_for_vocab(vocab)).itemsize == token_bytes(vocab)


def test_num_steps_refuses_an_empty_batch():
    with pytest.raises(ValueError, match="at least 1"):
        num_steps(1e9, 0)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("Some CPU", None),
    ],
)
def test_peak_flops(name, peak):
    assert peak_flops(name) == peak


def test_mfu_of_half_the_peak():
    each = flops_per_token(1e9, num_layers=16, hidden_size=2048, seq_len=2048)
    assert each == 6e9 + 12 * 16 * 2048 * 2048
    assert mfu(989e12 / each / 2, flops_each=each, num_gpus=1, peak=989e12) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("zero", "pp", "passes", "remark"),
    [
        (0, 1, 2, "gradients add up over micro-batches, and travel once"),
        (1, 1, 2, "the same"),
        (2, 1, 5, "reduce-scatter after each, all-gather once (tests/trainer/test_zero.py counts them)"),
        (3, 1, 12, "gather twice and reduce-scatter for each"),
        (2, 2, 2, "a pipeline reduces once"),
        (3, 2, 6, "gathered for 4 forward passes and once for the backward passes, reduced once"),
    ],
)
def test_micro_batches_make_zero_2_and_3_move_more(zero, pp, passes, remark):
    traffic = data_parallel_traffic(64.0, dp=64, zero=zero, pp=pp, num_micro_batches=4)
    assert (traffic.operations, traffic.bytes_per_step) == (passes, passes * 2 * 63), remark
    assert ("4 micro-batches" in traffic.what) == (passes > 3)


@pytest.mark.parametrize(("zero", "passes"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_zero_3_moves_half_as_much_again(zero, passes):
    assert data_parallel_traffic(64.0, dp=64, zero=zero).bytes_per_step == passes * 2 * 63
