from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from tokpipe.cli.plan import plan

SEVEN = "--params 7e9 --gpus 64"
QUOTED = [
    (SEVEN, "16 bytes", "per parameter"),
    (SEVEN, "112.00", "plain data parallelism"),
    (SEVEN, "29.31", "ZeRO-1"),
    (SEVEN, "15.53", "ZeRO-2"),
    (SEVEN, "1.75", "ZeRO-3"),
    (SEVEN, "956.3", "MB a layer at 2,048"),
    (SEVEN, "30.6", "GB of all layers"),
    (f"{SEVEN} --seq-len 4096", "3,254.8", "MB a layer at 4,096"),
    (f"{SEVEN} --seq-len 4096", "104.2", "GB of all layers"),
    (SEVEN, "59.91", "ZeRO-1 and activations"),
    (SEVEN, "536.9", "MB, full recomputation"),
    (f"{SEVEN} --seq-len 4096", "1,073.7", "MB, full recomputation"),
    (SEVEN, "0.54", "GB, full recomputation"),
    (SEVEN, "57x", "what full recomputation saves"),
    (SEVEN, "33%", "what it costs"),
    (SEVEN, "28%", "what it costs in PyTorch"),
    (f"{SEVEN} --pp 8 --micro-batches 8", "0.875", "bubble at m = p"),
    (f"{SEVEN} --pp 8 --micro-batches 32", "0.219", "bubble at m = 4 p"),
    (f"{SEVEN} --pp 8 --micro-batches 16", "0.4375", "bubble at m = 2 p (recall 6)"),
    ("--shape gpt3-175b --gpus 64", "2,800 GB", "one replica of GPT-3"),
    ("--shape gpt3-175b --gpus 64", "35 GPU", "to hold it"),
    (SEVEN, "140B", "compute-optimal tokens"),
    (SEVEN, "1.0T", "what LLaMA-7B saw"),
    (SEVEN, "143", "tokens a parameter"),
    (SEVEN, "7x", "the compute-optimal number"),
    (SEVEN, "2.0 TB", "tokenized corpus"),
    (SEVEN, "31.25 GB", "a rank's share"),
    (SEVEN, "4,194,304", "tokens a step"),
    (SEVEN, "238,419", "steps, rounded"),
    (SEVEN, "238,418", "whole steps"),
    ("--params 13e9 --gpus 128", "208.00", "recall 1, plain"),
    ("--params 13e9 --gpus 128", "53.22", "recall 1, ZeRO-1"),
    ("--params 13e9 --gpus 128", "27.42", "recall 1, ZeRO-2"),
    ("--params 13e9 --gpus 128", "1.625", "recall 1, ZeRO-3"),
    (f"{SEVEN} --seq-len 512", "113.2", "recall 2, MB a layer"),
    (f"{SEVEN} --seq-len 512", "3.62", "recall 2, GB"),
    (f"{SEVEN} --seq-len 1024", "310.4", "recall 2, MB a layer"),
    (f"{SEVEN} --seq-len 1024", "9.93", "recall 2, GB"),
    (f"{SEVEN} --seq-len 512", "2.74x", "recall 2, growth"),
    (SEVEN, "3.40x", "growth from 2,048 to 4,096"),
    ("--params 70e9 --gpus 500", "1,120 GB", "recall 3, one replica"),
    ("--params 70e9 --gpus 500", "Two kinds of remedy", "recall 3, the categories of fix"),
    (SEVEN, "6,738,415,616", "LLaMA-7B counted exactly"),
]


@pytest.mark.parametrize(("arguments", "number", "remark"), QUOTED)
def test_plan_prints_every_quoted_number(arguments, number, remark):
    result = CliRunner().invoke(plan, arguments.split())
    assert result.exit_code == 0, result.output
    # As a number of its own: 1.75 must not be found inside 31.75 or 1.755.
    assert re.search(rf"(?<![\d.,]){re.escape(number)}(?!\d|[.,]\d)", result.output), f"{number}: {remark}"


def test_plan_json_is_in_full_precision():
    result = CliRunner().invoke(plan, [*SEVEN.split(), "--json"])
    data = json.loads(result.output)
    assert data["state"][3]["plain"] == 1.75e9
    assert data["request"]["dp"] == 64
    assert data["activations"][0]["standard_layer"] == 956_301_312


def test_plan_names_the_shape_it_took():
    assert "nearest published shape, llama-13b" in CliRunner().invoke(plan, ["--params", "11B"]).output


def test_plan_takes_an_own_shape():
    arguments = "--layers 16 --hidden 2048 --heads 32 --kv-heads 8 --ffn 8192 --vocab-size 128256 --gpus 8 --gpu-memory 24GiB"
    result = CliRunner().invoke(plan, arguments.split())
    assert result.exit_code == 0, result.output
    assert "4 bytes a token" in result.output and "25.77 GB" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "give --params, --shape"),
        ("--layers 4 --hidden 64", "also needs --heads"),
        ("--shape llama-7b --layers 4", "not both"),
        ("--params 7e9 --tp 3", "does not divide the 8 GPUs of a node"),
        ("--params 7e9 --gpu-memory 80GX", "not a number with one of the units"),
        ("--params 0", "must be positive"),
        ("--params 7e9 --global-batch-size 65", "nearest that are"),
    ],
)
def test_plan_says_what_is_wrong_with_usage(arguments, message):
    result = CliRunner().invoke(plan, arguments.split())
    assert result.exit_code == 2
    assert message in result.output
