from __future__ import annotations

import pytest

from tokpipe.build.verify_task import open_tasks, verify_with_engine
from tokpipe.engine.base import Counters
from tokpipe.engine.local import LocalConfig, LocalEngine
from tokpipe.engine.progress import NoProgress
from tokpipe.errors import ManifestError
from tokpipe.shards import verify_dataset


@pytest.fixture
def data(tmp_path, dataset_writer):
    dataset_writer(tmp_path / "data", [("en", False, [40 + 30 * i, 60, 33]) for i in range(4)])
    return tmp_path / "data"


def test_tasks_find_what_one_process_finds(data, tmp_path, inline):
    assert verify_with_engine(data, inline, tmp_path / "a", NoProgress()) == verify_dataset(data)
    path = next((data / "shards").glob("*00002*.bin"))
    path.write_bytes(b"xx" + path.read_bytes()[2:])
    (data / "shards" / "stray.bin").touch()
    report = verify_with_engine(data, inline, tmp_path / "b", NoProgress())
    assert report == verify_dataset(data)
    assert {problem.kind for problem in report.problems} >= {"hash", "extra"}


def test_worker_processes_verify_and_leave_the_dataset_alone(data, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    with LocalEngine(LocalConfig(workers=2)) as engine:
        report = verify_with_engine(data, engine, tmp_path / "a", NoProgress())
    assert report.ok
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


def test_largest_first_and_all_bytes_are_reported(data, tmp_path, inline):
    verify_with_engine(data, inline, tmp_path / "a", NoProgress())
    for path in (tmp_path / "a" / "results").iterdir():
        path.unlink()
    tasks = open_tasks(str(tmp_path / "a"), "verify")
    assert tasks.missing() == [3, 2, 1, 0]
    seen: list[Counters] = []
    tasks.run(3, seen.append)
    assert sum(counters.text_bytes for counters in seen) == tasks.size(3)
    assert tasks.missing() == [2, 1, 0]
    assert "verify shards/en-00003-000" in tasks.name(3)


def test_without_a_manifest_there_is_nothing_to_verify(tmp_path, inline):
    with pytest.raises(ManifestError):
        verify_with_engine(tmp_path, inline, tmp_path / "a", NoProgress())
