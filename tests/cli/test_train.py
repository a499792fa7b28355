from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tokpipe.cli.build import build
from tokpipe.cli.export import export
from tokpipe.cli.main import cli
from tokpipe.cli.train import train

RECIPE = """
[data]
path = "missing"
seq_len = 16
global_batch_size = 4

[model]
num_layers = 2
hidden_size = 32
num_heads = 4
num_kv_heads = 2
ffn_size = 64

[run]
out = "run"
max_steps = 3
device = "cpu"
log_interval = 1

[checkpoint]
interval = 2

[metrics]
plot = false

[failure]
timeout_seconds = 30
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory, text_maker_for_module):
    """(dataset folder, recipe path) made from raw text by `tokpipe build`."""
    folder = tmp_path_factory.mktemp("train")
    for source in ("hi", "en"):
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in text_maker_for_module(source)]
        (folder / "raw").mkdir(exist_ok=True)
        (folder / "raw" / f"{source}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    arguments = ["--corpus", str(folder / "raw"), "--out", str(folder / "data"), "--vocab-size", "700", "--validation", "0.1"]
    layout = ["--dp", "1", "--seq-len", "16", "--global-batch-size", "4", "--workers", "1"]
    result = CliRunner().invoke(build, arguments + layout)
    assert result.exit_code == 0, result.output
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    return folder / "data", folder / "recipe.toml"


@pytest.fixture(scope="module")
def text_maker_for_module():
    """Deterministic documents of one language."""
    import random

    syllables = {"en": "ba con de er fi ing ka le mo ness".split(), "hi": "क का कि की प्र मा नी रा स्त हि".split()}

    def make(language):
        rng = random.Random(language)
        words = ["".join(rng.choices(syllables[language], k=rng.randint(1, 4))) for _ in range(300)]
        return [" ".join(rng.choices(words, k=60)) for _ in range(120)]

    return make


def test_train_and_export_from_raw_text(built, tmp_path):
    data, recipe = built
    arguments = [str(recipe), "--data", str(data), "--out", str(tmp_path / "run"), "--json"]
    result = CliRunner().invoke(train, arguments)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["last_step"] == 3 and set(summary["validation"]) == {"en", "hi", "all"}
    again = CliRunner().invoke(train, [*arguments[:-1], "--max-steps", "4", "--set", "run.log_interval=2"])
    assert again.exit_code == 0 and again.stdout.startswith("steps 3 to 4, training loss"), again.output
    exported = CliRunner().invoke(export, [str(tmp_path / "run"), str(tmp_path / "hf")])
    assert exported.exit_code == 0 and "parameters after 4 steps, bf16, 1 file(s)" in exported.stdout, exported.output
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= {
        path.name for path in (tmp_path / "hf").iterdir()
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("max_steps = 3", "max_step = 3"), "unknown key 'max_step' in [run]; did you mean 'max_steps'?"),
        (("[metrics]", "[metric]"), "unknown key 'metric' as a table; did you mean 'metrics'?"),
        (("num_layers = 2", 'num_layers = "2"'), "model.num_layers must be int, got '2'"),
    ],
)
def test_a_wrong_recipe_exits_with_1_and_says_where(built, tmp_path, change, message):
    data, recipe = built
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(recipe.read_text(encoding="utf-8").replace(*change), encoding="utf-8")
    result = CliRunner().invoke(cli, ["train", str(wrong), "--data", str(data)])
    assert result.exit_code == 1 and message in str(result.exception)


def test_export_needs_a_checkpoint(tmp_path):
    result = CliRunner().invoke(cli, ["export", str(tmp_path), str(tmp_path / "hf")])
    assert result.exit_code == 1 and "holds no complete checkpoint" in str(result.exception)


CRASH_ONCE = """
import os, sys
from pathlib import Path
from tokpipe.trainer.data import DatasetSource
real, flag = DatasetSource.next_step, Path({flag!r})
def next_step(self):
    self.count = getattr(self, "count", 0) + 1
    if os.environ["RANK"] == "1" and self.count == 4 and not flag.exists():
        flag.touch()
        os._exit(9)
    return real(self)
DatasetSource.next_step = next_step
from tokpipe.cli.main import main
main()
"""


@pytest.mark.distributed
def test_torchrun_restarts_and_the_run_goes_on_from_its_last_checkpoint(built, tmp_path):
    """Rank 1 dies in step 3; the second attempt resumes after step 2, and the losses are those of a run that never died."""
    data, recipe = built
    script = tmp_path / "crash_once.py"
    script.write_text(CRASH_ONCE.format(flag=str(tmp_path / "crashed")), encoding="utf-8")
    arguments = ["train", str(recipe), "--data", str(data), "--max-steps", "5", "--set", "checkpoint.asynchronous=false"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [*launcher, str(script), *arguments, "--out", str(tmp_path / "run")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "crashed").exists() and "resumed from" in done.stderr
    assert done.stdout.strip().splitlines()[0].startswith("steps 2 to 5")
    whole = CliRunner().invoke(train, [*arguments[1:], "--out", str(tmp_path / "whole")])
    assert whole.exit_code == 0, whole.output
    losses = [_losses(tmp_path / name / "metrics.jsonl") for name in ("run", "whole")]
    assert losses[0] == pytest.approx(losses[1], abs=2e-6) and len(losses[0]) == 5


def _losses(path):
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record["loss"] for record in records if record["kind"] == "train"]
