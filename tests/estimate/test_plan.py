from __future__ import annotations

import json

import pytest

from tokpipe.estimate import SHAPES, MicroBatch, ModelShape, complete_request, layer_bytes, make_plan, render_plan
from tokpipe.estimate.fit import peak_bytes, stage_memory
from tokpipe.estimate.grid import coordinate, grid_lines
from tokpipe.estimate.numbers import count, gigabytes, rough_gigabytes, storage

LLAMA = SHAPES["llama-7b"]


def test_dp_is_what_the_gpus_leave():
    request = complete_request(LLAMA, gpus=64, tp=4, pp=2)
    assert (request.dp, request.num_micro_batches) == (8, 256)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 64, "tp": 3}, "does not divide the 8 GPUs of a node"),
        ({"gpus": 60, "tp": 8}, "not a multiple of tp 8 x pp 1"),
        ({"gpus": 64, "dp": 32}, "--dp 64 would use them all"),
        ({"global_batch_size": 100}, "nearest that are: 64 and 128"),
        ({"global_batch_size": 8}, "the smallest that is: 64"),
        ({"global_batch_size": 128, "num_micro_batches": 3}, "that makes 2"),
        ({"pp": 64}, "more than the model's 32 layers"),
        ({"pp": 2, "schedule": "interleaved"}, "do not go together"),
        ({"pp": 8, "schedule": "interleaved", "virtual_stages": 2, "num_micro_batches": 12}, "multiples of pp"),
        ({"pp": 8, "num_micro_batches": 4}, "1f1b needs at least pp 8 micro-batches"),
        ({"tp": 8, "seq_len": 1001}, "--tp 8 does not divide --seq-len 1001"),
        ({"tp": 64, "gpus_per_node": 64}, "--tp 64 does not divide the 32 key and value heads"),
        ({"gpus": 0}, "at least 1"),
        ({"micro_batch_size": 0}, "at least 1"),
        ({"seq_len": 0}, "must be positive"),
    ],
)
def test_complete_request_refuses_with_the_numbers(options, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        complete_request(LLAMA, **options)


def test_a_default_batch_is_rounded_to_the_replicas_and_said():
    request = complete_request(SHAPES["llama-70b"], gpus=500, gpus_per_node=1)
    assert request.global_batch_size == 2000
    assert "2048 is not a multiple" in request.notes[0]


def test_plan_is_json_and_agrees_with_the_text():
    plan = make_plan(complete_request(LLAMA))
    data = json.loads(json.dumps(plan.to_dict()))
    assert data["state"][1]["plain"] == 29.3125e9
    assert data["tokens"]["steps"] == 238_419
    assert "29.31" in render_plan(plan)


@pytest.mark.parametrize("gpus", [64, 4096, 1_000_000])
def test_more_data_parallel_gpus_never_make_plain_replicas_fit(gpus):
    request = complete_request(LLAMA, gpus=gpus, zero=0, global_batch_size=gpus)
    assert peak_bytes(request, "full") > request.gpu_bytes
    assert "Two kinds of remedy" in render_plan(make_plan(request))


def test_suggestions_fit_and_use_all_gpus():
    plan = make_plan(complete_request(SHAPES["llama-70b"], gpus=256))
    assert not any(row.fits for row in plan.activations)
    assert plan.suggestions
    for layout in plan.suggestions:
        assert layout.dp * layout.tp * layout.pp == 256
        assert layout.bytes_per_gpu <= 80e9 * 0.94


def test_nothing_fits_is_said_with_a_way_out():
    text = render_plan(make_plan(complete_request(SHAPES["gpt3-175b"], gpus=1, global_batch_size=1)))
    assert "No layout of 1 GPUs" in text


def test_pipelined_zero_keeps_whole_gradients_while_a_step_runs():
    plain = complete_request(LLAMA, gpus=16, pp=2, zero=1, num_micro_batches=8)
    sharded = complete_request(LLAMA, gpus=16, pp=2, zero=2, num_micro_batches=8)
    assert peak_bytes(sharded, "none") == peak_bytes(plain, "none")


def test_pipelined_zero_3_keeps_the_gathered_parameters_too():
    """As `tests/trainer/test_pipeline_parallel.py` counts: whole parameters beside the shards, and whole gradients."""
    request = complete_request(LLAMA, gpus=16, pp=2, zero=3, num_micro_batches=8)
    stage = stage_memory(request, "none")[0]
    assert stage.state == stage.num_params * (2 + 2 / 8 + 2 + 12 / 8)
    assert "parameters that ZeRO-3 gathers" in render_plan(make_plan(request))


def test_recomputation_needs_one_whole_layer_at_a_time():
    request = complete_request(LLAMA, zero=1, micro_batch_size=16)
    batch = MicroBatch(seq_len=2048, size=16)
    kept, whole = layer_bytes(LLAMA, batch, "full"), layer_bytes(LLAMA, batch, "none")
    assert stage_memory(request, "full")[0].activations == 32 * kept + (whole - kept)
    assert stage_memory(request, "none")[0].activations == 32 * whole


def test_suggested_pipelines_are_filled():
    plan = make_plan(complete_request(SHAPES["llama-70b"], gpus=64, tp=8, global_batch_size=8))
    assert plan.suggestions and all(8 // s.dp >= s.pp for s in plan.suggestions)


def test_plan_of_a_pipeline_shows_stages_and_schedules():
    request = complete_request(LLAMA, tp=2, pp=8, num_micro_batches=16, schedule="interleaved", virtual_stages=2)
    text = render_plan(make_plan(request))
    assert "0.4375" in text and "interleaved v=2" in text and "Parameters per rank and stage" in text


def test_plan_of_a_tiny_shape_reads_well():
    shape = ModelShape(name="tiny", num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_size=192, vocab_size=512)
    text = render_plan(make_plan(complete_request(shape, gpus=1, global_batch_size=4)))
    assert "(2 for keys and values)" in text


def test_coordinate_has_tensor_parallelism_innermost():
    assert [coordinate(rank, dp=2, tp=2) for rank in range(8)] == [
        (pp, dp, tp) for pp in range(2) for dp in range(2) for tp in range(2)
    ]


def test_grid_lines_are_cut_in_the_middle():
    lines = grid_lines(dp=64, tp=2, pp=1)
    assert len(lines) == 18 and "48 more lines" in lines[9]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (gigabytes(1.625e9), "1.625"),
        (gigabytes(1.75e9), "1.75"),
        (gigabytes(2.8e12), "2,800.00"),
        (rough_gigabytes(3.6238e9), "3.62"),
        (rough_gigabytes(104.15e9), "104.2"),
        (count(7e9), "7B"),
        (count(1e12), "1.0T"),
        (count(6.5e9), "6.5B"),
        (count(512), "512"),
        (storage(2e12), "2.0 TB"),
        (storage(31.25e9), "31.25 GB"),
        (storage(5e5), "0.5 MB"),
    ],
)
def test_numbers_are_written_as_people_quote_them(text, expected):
    assert text == expected
