"""What each stage of a build costs, in CPU seconds of one core per GB of text: the inputs of docs/scaling.md.

CPU seconds, not seconds on the clock: they hold on a machine that does other things too. Every stage's tasks run one after the
other in this process, with one thread per library.

    python scripts/bench_stages.py ../shared/corpus /tmp/scratch
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import time
from pathlib import Path


class OneCore:
    """An engine that runs tasks here and remembers the CPU seconds of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, spec, progress) -> None:
        """Run every missing task."""
        tasks = spec.open()
        began = time.process_time()
        for index in tasks.missing():
            tasks.run(index, progress.add)
        self.seconds[spec.stage] = self.seconds.get(spec.stage, 0.0) + time.process_time() - began

    def close(self) -> None:
        """Nothing is kept."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus")
    parser.add_argument("scratch", type=Path, help="a folder for the datasets; what is made in it is removed")
    parser.add_argument("--split-bytes", type=int, default=1 << 30)
    arguments = parser.parse_args()
    from tokpipe.engine.local import ONE_THREAD

    os.environ.update(ONE_THREAD)
    from tokpipe.build import BuildConfig, build
    from tokpipe.corpus import CorpusConfig
    from tokpipe.shards import read_manifest, verify_dataset

    out = arguments.scratch / "data"
    config = BuildConfig(corpus=CorpusConfig(corpus=arguments.corpus, split_bytes=arguments.split_bytes), out=str(out))
    try:
        engine = OneCore()
        report = build(config, engine=engine)
        text = sum(source.text_bytes for source in report.sources)
        began = time.process_time()
        verify_dataset(out)
        engine.seconds["verify"] = time.process_time() - began
        manifest = read_manifest(out)
        tokens = sum(shard.num_tokens for shard in manifest.shards)
        documents = sum(shard.num_documents for shard in manifest.shards)
        shard_bytes = sum(shard.bin_bytes + shard.idx_bytes for shard in manifest.shards)
        tables = sum(path.stat().st_size for path in (out / "build" / "counts").glob("count-*"))
        result = {
            "text_bytes": text,
            "bytes_per_token": text / tokens,
            "tokens_per_document": tokens / documents,
            "manifest_bytes_per_shard": (out / "dataset.json").stat().st_size / len(manifest.shards),
            "shard_bytes_per_text_byte": shard_bytes / text,
            "table_bytes_per_text_byte": tables / text,
            "cpu_seconds": {stage: round(seconds, 2) for stage, seconds in engine.seconds.items()},
            "cpu_seconds_per_gb": {stage: round(seconds / text * 1e9, 1) for stage, seconds in engine.seconds.items()},
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        print(json.dumps(result, indent=1))
    finally:
        shutil.rmtree(out, ignore_errors=True)


if __name__ == "__main__":
    main()
