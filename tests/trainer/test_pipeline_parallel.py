"""The pipeline: how layers are dealt out, how long it waits, and what it holds."""

from __future__ import annotations

import jobs
import jobs_bytes
import jobs_pipeline
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokpipe.errors import LayoutError
from tokpipe.trainer.mesh import ParallelConfig
from tokpipe.trainer.model import Transformer
from tokpipe.trainer.pipeline_parallel import hidden_shape, prune_to_stage, split_layers, stages_of_rank

P, M = 4, 8
SECONDS = 0.06  # a stage sleeps so long forward and twice so long backward
SCHEDULES = {
    "gpipe": ParallelConfig(pp=P, dp=2, num_micro_batches=M, pipeline_schedule="gpipe"),
    "1f1b": ParallelConfig(pp=P, dp=2, num_micro_batches=M),
    "interleaved": ParallelConfig(pp=P, dp=2, num_micro_batches=M, pipeline_schedule="interleaved", virtual_stages=2),
}


@given(num_stages=st.integers(1, 16), extra=st.integers(0, 40))
def test_split_layers_deals_every_layer_once_in_order_and_evenly(num_stages, extra):
    num_layers = num_stages + extra
    stages = split_layers(num_layers, num_stages)
    assert [layer for stage in stages for layer in stage] == list(range(num_layers))
    sizes = [len(stage) for stage in stages]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "sizes"),
    [
        (8, 4, [2, 2, 2, 2]),
        (6, 4, [1, 2, 2, 1]),  # the ends have embedding and head already
        (5, 4, [1, 2, 1, 1]),
        (7, 4, [2, 2, 2, 1]),  # three left over: one end has to take one
    ],
)
def test_split_layers_spares_the_ends(num_layers, num_stages, sizes):
    assert [len(stage) for stage in split_layers(num_layers, num_stages)] == sizes


def test_split_layers_refuses_an_empty_stage():
    with pytest.raises(LayoutError, match="3 layers cannot fill 4 pipeline stages"):
        split_layers(3, 4)


def test_stages_of_rank_are_dealt_round():
    config = ParallelConfig(pp=2, pipeline_schedule="interleaved", virtual_stages=3, num_micro_batches=2)
    assert [stages_of_rank(rank, config) for rank in range(2)] == [[0, 2, 4], [1, 3, 5]]


def test_stages_together_are_the_model_under_the_same_names():
    with torch.device("meta"):
        whole = [name for name, _ in Transformer(jobs.MODEL).named_parameters()]
        parts = [Transformer(jobs.MODEL) for _ in range(3)]
    for stage, part in enumerate(parts):
        prune_to_stage(part, stage, 3)
    assert [name for part in parts for name, _ in part.named_parameters()] == whole


def test_hidden_shape_is_cut_by_sequence_parallel():
    config = ParallelConfig(tp=2, pp=2, num_micro_batches=2)
    assert hidden_shape(jobs.MODEL, config, torch.Size([3, 32])) == (3, 16, 64)
    whole = ParallelConfig(tp=2, pp=2, num_micro_batches=2, sequence_parallel=False)
    assert hidden_shape(jobs.MODEL, whole, torch.Size([3, 32])) == (3, 32, 64)
    with pytest.raises(LayoutError, match="seq_len=33 over tp=2"):
        hidden_shape(jobs.MODEL, config, torch.Size([3, 33]))


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("schedule", "bubble", "in_flight"),
    [
        ("gpipe", (P - 1) / M, [M, M, M, M]),
        ("1f1b", (P - 1) / M, [4, 3, 2, 1]),
        # Parts of a rank, so each weighs half: (v - 1) p + 2 (p - 1 - stage) + 1.
        ("interleaved", (P - 1) / (2 * M), [11, 9, 7, 5]),
    ],
)
def test_schedule_waits_and_holds_what_the_formula_says(gang, schedule, bubble, in_flight):
    # A busy machine can only make it wait longer, so the best of a few runs counts; they sleep, and cost no compute.
    for attempt in range(4):
        measured = gang.run(jobs_pipeline.run_sleeping, SCHEDULES[schedule], SECONDS * (1 + attempt))
        assert [held for _, held in measured[::2]] == in_flight  # ranks 0, 2, 4, 6 are the stages of replica 0
        idle = max(share for share, _ in measured)
        assert idle > bubble - 0.08
        if idle < bubble + 0.08:
            return
    pytest.fail(f"{schedule} waits {idle:.3f} of the ideal time, expected {bubble:.3f}")


@pytest.mark.distributed
def test_pipeline_keeps_whole_gradients_until_the_last_micro_batch(gang):
    """Without a pipeline ZeRO-2 never holds more than two blocks' whole gradients; with one it holds the stage's."""
    alone = ParallelConfig(dp=8, zero=2, dtype="bf16", num_micro_batches=2)
    most, parameters = gang.run(jobs_bytes.most_gradient_bytes, alone)[0]
    assert most < 2 * parameters * (2 / 6 + 1 / 8 + 0.1)
    piped = ParallelConfig(pp=2, dp=4, zero=2, dtype="bf16", num_micro_batches=2)
    most, parameters = gang.run(jobs_bytes.most_gradient_bytes, piped)[0]
    assert 2 * parameters <= most < 2.2 * parameters  # and the shard of the bucket under way


@pytest.mark.distributed
def test_interleaved_rank_holds_two_parts_with_global_layer_numbers(gang):
    config = ParallelConfig(pp=2, dp=4, num_micro_batches=2, pipeline_schedule="interleaved", virtual_stages=2)
    names = gang.run(jobs_pipeline.stage_names, config)
    layers = [{name.split(".")[1] for name in held if name.startswith("layers")} for held in names]
    assert layers == [{"0", "2"}] * 4 + [{"1", "3"}] * 4
    assert "embedding.weight" in names[0] and "head.weight" in names[4]
