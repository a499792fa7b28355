"""Encode every document of a built corpus again with plain SentencePiece and compare with the shards, id for id.

`tokpipe build` does this for a sample of every task; this does it for all, at SentencePiece's speed.

    python scripts/check_ids.py data
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import sentencepiece

from tokpipe.build import open_store, read_plan
from tokpipe.build.plan import read_splits
from tokpipe.build.receipts import read_receipt, receipt_name
from tokpipe.corpus import RejectLog, read_split
from tokpipe.shards import Shard, ShardEntry, read_manifest


def documents(out: Path, shards: list[ShardEntry]) -> Iterator[np.ndarray]:
    """The documents of some shards, one after the other."""
    for entry in shards:
        shard = Shard.open(out / entry.name, expect=entry)
        for number in range(shard.num_documents):
            yield shard.document(number)


def check_task(out: str, task: int) -> tuple[int, list[str]]:
    """Compare one task's shards with its text; returns the number of documents and what differs."""
    store = open_store(out)
    plan = read_plan(store)
    manifest = read_manifest(out)
    receipt = read_receipt(store, receipt_name("tokenize", task), plan.hash)
    sides = [[shard for shard in receipt.shards if shard.held_out == held_out] for held_out in (False, True)]
    training, held_out = (documents(Path(out), side) for side in sides)
    waiting = {"training": next(training, None), "held-out": next(held_out, None)}
    streams = {"training": training, "held-out": held_out}
    processor = sentencepiece.SentencePieceProcessor(model_file=str(Path(out) / manifest.tokenizer.path))
    start = [manifest.tokenizer.bos_id] if manifest.tokenizer.prepend_bos else []
    count, wrong = 0, []
    for batch in read_split(read_splits(store, plan)[task], plan.config(out).corpus, RejectLog()):
        texts = iter(enumerate(batch.texts.to_pylist()))
        while group := list(itertools.islice(texts, 256)):
            for (row, _), ids in zip(group, processor.encode([text for _, text in group]), strict=True):
                expected = np.array([*start, *ids, manifest.tokenizer.eos_id])
                # Held-out documents stand in shards of their own, in the order of the text like the others.
                side = next((s for s, found in waiting.items() if found is not None and np.array_equal(found, expected)), None)
                count += 1
                if side is None:
                    return count, [
                        f"{batch.place(row)}: neither the next training document nor the next held-out one has its ids"
                    ]
                waiting[side] = next(streams[side], None)
    wrong += [f"task {task}: a {side} document has no text" for side, found in waiting.items() if found is not None]
    return count, wrong


def main() -> int:
    """Check every task, several at a time; the exit code says whether all ids are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--workers", type=int, default=None)
    arguments = parser.parse_args()
    num_tasks = read_plan(open_store(arguments.data)).num_splits
    with ProcessPoolExecutor(arguments.workers) as pool:
        results = list(pool.map(check_task, itertools.repeat(arguments.data), range(num_tasks)))
    wrong = [line for _, lines in results for line in lines]
    print("\n".join(wrong) or f"{sum(count for count, _ in results):,} documents: every id equals SentencePiece's")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
