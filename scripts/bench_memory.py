"""How much memory a build takes: writes a JSONL file of some gigabytes, builds it, and watches every process.

The file has many short documents and, in each, words that occur nowhere else, so that whatever grows with documents or with
distinct words shows: no two of the two million words that are trained on share a part. Fails if any process exceeds the limit.

    python scripts/bench_memory.py demo/bench-memory --gigabytes 4
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tokpipe.build import open_store, open_tasks, read_plan, stages
from tokpipe.errors import BuildError

BLOCK_DOCUMENTS = 40_000
PLACE = b"@" * 8
POLL_SECONDS = 0.1
TRAINER = b"trainer_process.py"
SYLLABLES = ["ka", "mi", "ro", "ten", "sal", "vi", "dor", "nu", "कि", "रा", "मन", "से", "तो", "ली", "पर", "दे"]


def block(rng: np.random.Generator) -> bytes:
    """Some megabytes of JSON lines: Zipf-distributed made-up words, two placeholders a document."""
    words = np.array(["".join(rng.choice(SYLLABLES, size=rng.integers(1, 5))) for _ in range(50_000)], dtype=object)
    lines = []
    for _ in range(BLOCK_DOCUMENTS):
        ranks = np.minimum(rng.zipf(1.2, size=rng.integers(5, 90)), len(words)) - 1
        text = " ".join(words[ranks])
        lines.append(f'{{"text": "{text} {PLACE.decode()} {PLACE.decode()}."}}\n')
    return "".join(lines).encode()


def write_corpus(path: Path, num_bytes: int) -> None:
    """Repeat one block with fresh numbers, in base 16 spelled in letters, in its placeholders."""
    template = np.frombuffer(block(np.random.default_rng(1)), np.uint8)
    data = template.copy()
    starts = np.array(list(find_all(template.tobytes(), PLACE)))
    places = starts[:, None] + np.arange(len(PLACE))
    shifts = np.arange(4 * (len(PLACE) - 1), -1, -4)
    with path.open("wb") as file:
        for number in range(-(-num_bytes // len(data))):
            values = np.arange(len(starts), dtype=np.int64) + number * len(starts)
            data[places] = ord("a") + ((values[:, None] * 2_654_435_761 >> shifts) & 15)
            file.write(data)


def find_all(data: bytes, what: bytes) -> Iterator[int]:
    """Where `what` occurs."""
    at = data.find(what)
    while at >= 0:
        yield at
        at = data.find(what, at + len(what))


def children(pid: int) -> list[int]:
    """Ids of a process and all its descendants."""
    found = [pid]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found += children(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def peak_bytes(pid: int) -> int:
    """The most memory that a process has held so far, mapped files included, as the kernel kept it; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def role(pid: int, parent: int) -> str:
    """What a process is for; empty if it is gone."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    if not command:
        return ""  # ended, and not yet waited for
    return "parent" if pid == parent else "trainer" if TRAINER in command else "worker"


def stage_now(out: Path) -> str:
    """The first stage that is not finished."""
    try:
        plan = read_plan(open_store(str(out)))
        return next((stage for stage in stages(plan) if open_tasks(str(out), stage).missing()), "finish")
    except BuildError:
        return "plan"


def watch(process: subprocess.Popen[bytes], out: Path) -> dict[int, tuple[str, dict[str, int]]]:
    """Process id -> its role and, by stage, the most memory that it had held by then, until the build ends."""
    seen: dict[int, tuple[str, dict[str, int]]] = {}
    while process.poll() is None:
        stage = stage_now(out)
        for pid in children(process.pid):
            who, peaks = seen.get(pid, ("", {}))
            # The last answer counts: a process that has just been forked still looks like the one that forked it.
            seen[pid] = (role(pid, process.pid) or who, peaks | {stage: peak_bytes(pid) or peaks.get(stage, 0)})
        time.sleep(POLL_SECONDS)
    return seen


def main() -> int:
    """Write, build, watch, print; the exit code says whether the limits held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--limit-gigabytes", type=float, default=1.0)
    parser.add_argument("--max-words", type=int, default=2_000_000)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.folder, ignore_errors=True)
    corpus, out = arguments.folder / "raw", arguments.folder / "data"
    corpus.mkdir(parents=True)
    write_corpus(corpus / "text.jsonl", round(arguments.gigabytes * 1e9))
    options = ["--max-words", str(arguments.max_words), "--workers", str(arguments.workers)]
    command = [sys.executable, "-m", "tokpipe", "build", "--corpus", str(corpus), "--out", str(out), *options]
    process = subprocess.Popen(command)
    seen = watch(process, out)
    if process.returncode:
        return process.returncode
    limit, over = arguments.limit_gigabytes * 1e9, 0
    for pid, (who, peaks) in sorted(seen.items()):
        over += max(peaks.values()) > limit
        for stage, peak in peaks.items():
            verdict = "above" if peak > limit else "below"
            print(f"{who:<7} {pid:>8}  up to {stage:<9} {peak / 1e9:6.3f} GB  {verdict} {limit / 1e9:.1f} GB")
    shutil.rmtree(arguments.folder)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
