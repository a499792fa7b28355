"""torchrun over two hosts (two network namespaces of this machine) trains to the same losses as on one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.distributed]

REPOSITORY = Path(__file__).parents[2]
RECIPE = REPOSITORY / "recipes" / "tiny-3d-cpu.toml"
STEPS = 3


@pytest.fixture
def namespaces():
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs iproute2 and root to make two network namespaces")
    listing = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    yield
    assert subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout == listing


def losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


def test_two_hosts_train_to_the_losses_of_one(namespaces, real_dataset, tmp_path):
    common = ["train", str(RECIPE), "--data", str(real_dataset), "--max-steps", str(STEPS)]
    for setting in ("run.log_interval=1", "schedule.warmup_steps=1", "schedule.decay_steps=1"):
        common += ["--set", setting]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON": sys.executable}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "8", "-m", "tokpipe.cli.main"]
    one = [*torchrun, *common, "--out", str(tmp_path / "one")]
    done = subprocess.run(one, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    script = ["bash", str(REPOSITORY / "scripts" / "two_hosts.sh"), "4", str(tmp_path / "logs"), "tokpipe.cli.main"]
    done = subprocess.run(
        [*script, *common, "--out", str(tmp_path / "two")], env=environment, capture_output=True, text=True, check=False
    )
    said = "".join(path.read_text()[-4000:] for path in sorted((tmp_path / "logs").iterdir()))
    assert done.returncode == 0, done.stderr + said
    assert len(losses(tmp_path / "one")) == STEPS
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
