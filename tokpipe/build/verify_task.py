"""Verify a dataset by tasks: one a shard, run by any engine. The dataset is only read; results go to a folder of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path

from tokpipe.engine.base import Counters, Engine, ProgressSink, Report, TaskSpec
from tokpipe.shards import Manifest, Problem, VerifyReport, entries_of, read_manifest, verify_folder, verify_shard, write_durably

OPENER = "tokpipe.build.verify_task:open_tasks"
STAGE = "verify"
JOB = "verify.json"


class VerifyTasks:
    """Task i re-reads shard i of those meant to be there and leaves `results/i.json`, the list of what is wrong with it."""

    def __init__(self, results: Path, data: str, manifest: Manifest, only: Collection[str] | None = None) -> None:
        self.results, self.data, self.manifest = results, data, manifest
        self.entries = entries_of(manifest, only)

    def __len__(self) -> int:
        return len(self.entries)

    def size(self, index: int) -> int:
        """Bytes of both files."""
        return self.entries[index].bin_bytes + self.entries[index].idx_bytes

    def missing(self) -> list[int]:
        """Shards without a result, largest first."""
        done = {path.stem for path in self.results.glob("*.json")}
        return sorted((i for i in range(len(self)) if str(i) not in done), key=lambda i: (-self.size(i), i))

    def name(self, index: int) -> str:
        """The shard's name."""
        return f"verify {self.entries[index].name}"

    def run(self, index: int, report: Report) -> None:
        """Verify one shard."""
        entry = self.entries[index]
        problems = verify_shard(
            self.data, entry, self.manifest, on_bytes=lambda num_bytes: report(Counters(text_bytes=num_bytes))
        )
        text = json.dumps([asdict(problem) for problem in problems], ensure_ascii=False)
        write_durably(self.results / f"{index}.json", text.encode())

    def problems(self, index: int) -> list[Problem]:
        """What a finished task found."""
        found = json.loads((self.results / f"{index}.json").read_bytes())
        return [Problem(**problem) for problem in found]


def open_tasks(out: str, stage: str) -> VerifyTasks:
    """Open the tasks whose results go to the folder `out`."""
    job = json.loads((Path(out) / JOB).read_bytes())
    return VerifyTasks(Path(out) / "results", job["data"], read_manifest(job["data"]), job["only"])


def verify_with_engine(
    data: str | os.PathLike[str],
    engine: Engine,
    results: Path,
    progress: ProgressSink,
    *,
    only: Collection[str] | None = None,
    fingerprint_of: Callable[[Path], str] | None = None,
) -> VerifyReport:
    """`verify_dataset`, its shards spread over an engine's workers.

    Args:
        data: the dataset folder, or its URL.
        engine: runs the tasks.
        results: an empty folder that all workers see; the caller removes it.
        progress: told how much is read.
        only: as for `verify_dataset`.
        fingerprint_of: the same.

    Raises:
        ManifestError: if there is no manifest to hold the files against.
        TaskFailedError: if shards could not be looked at, for another reason than what is wrong with them.
    """
    manifest = read_manifest(data)
    where = os.fspath(data)
    (results / "results").mkdir(parents=True)
    job = {"data": where if "://" in where else str(Path(where).absolute()), "only": None if only is None else sorted(only)}
    write_durably(results / JOB, json.dumps(job).encode())
    problems, leftovers = verify_folder(data, manifest, fingerprint_of=fingerprint_of)
    engine.run(TaskSpec(OPENER, str(results.absolute()), STAGE), progress)
    tasks = VerifyTasks(results / "results", where, manifest, only)
    for index in range(len(tasks)):
        problems += tasks.problems(index)
    return VerifyReport.of(manifest, tasks.entries, problems, leftovers)
