"""The warm start: the frequent units of a corpus, encoded once, kept as plain arrays beside the tokenizer.

`units.npy`, `unit_keys.npy` and `unit_ids.npy` are the arrays of a `UnitTable`, mapped read-only by every worker, so a node holds
one copy of them. `units.json` says which tokenizer and which layout they belong to and is written last; arrays that do not match
it are left aside, because encoding is right without them, only slower at first.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from tokpipe.tokenizer.counts_file import iter_counts
from tokpipe.tokenizer.unit_table import IDS_USED, KEYS_USED, USED, UnitTable, compact_entries

logger = logging.getLogger(__name__)

LAYOUT = 1
"""Raised whenever the words of an entry, the hash or the way of probing change."""
MAX_UNITS = 300_000
"""Units kept by default: about 16 MB of entries and 5 MB of keys and ids."""
MAX_WORDS = 2_000_000
DESCRIPTION = "units.json"
ARRAYS = {"entries": "units.npy", "keys": "unit_keys.npy", "ids": "unit_ids.npy"}
_BATCH_WORDS = 8192


def frequent_words(counts_path: Path, max_words: int = MAX_WORDS) -> Iterator[pa.LargeStringArray]:
    """The most frequent words of a counts file in batches, the most frequent first; ties in the file's order.

    A word that several sources have counts in each of them on its own. Memory grows with `max_words`, not with the file.
    """
    threshold = _threshold(counts_path, max_words)
    words, counts = [], []
    for block in iter_counts(counts_path):
        rows = np.flatnonzero(block.counts >= threshold)
        words.append(block.words().take(pa.array(rows)))
        counts.append(block.counts[rows])
    if not words:
        return
    column = pa.concat_arrays(words)
    order = np.argsort(-np.concatenate(counts), kind="stable")[:max_words]
    for start in range(0, len(order), _BATCH_WORDS):
        yield column.take(pa.array(order[start : start + _BATCH_WORDS]))


def _threshold(counts_path: Path, max_words: int) -> int:
    """The smallest power of two that at most `max_words` rows reach."""
    powers = np.zeros(64, np.int64)
    for block in iter_counts(counts_path):
        powers += np.bincount(np.log2(np.maximum(block.counts, 1)).astype(np.int64), minlength=64)
    at_least = np.cumsum(powers[::-1])[::-1]
    return 1 << int(np.argmax(at_least <= max_words))


def write_warm_units(folder: Path, table: UnitTable, fingerprint: str) -> int:
    """Publish a table's units in `folder`, units.json last; returns their number."""
    num_units = int(table.counters[USED])
    arrays: dict[str, NDArray[Any]] = {
        "entries": compact_entries(table),
        "keys": table.keys[: table.counters[KEYS_USED]],
        "ids": table.ids[: table.counters[IDS_USED]],
    }
    hashes = {}
    for name, array in arrays.items():
        side = folder / f".{ARRAYS[name]}.tmp"
        with side.open("wb") as file:
            np.save(file, array)
            file.flush()
            os.fsync(file.fileno())
        hashes[name] = xxhash.xxh3_128_hexdigest(side.read_bytes())
        side.rename(folder / ARRAYS[name])
    description = {"layout": LAYOUT, "fingerprint": fingerprint, "num_units": num_units, "xxh3_128": hashes}
    side = folder / f".{DESCRIPTION}.tmp"
    side.write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    side.rename(folder / DESCRIPTION)
    return num_units


def read_warm_units(folder: Path, fingerprint: str) -> UnitTable | None:
    """Map the warm units in `folder`, or return None (and say why in the log) if they are absent, stale or damaged."""
    if not (folder / DESCRIPTION).is_file():
        return None
    try:
        description = json.loads((folder / DESCRIPTION).read_bytes())
        belongs = (description["layout"], description["fingerprint"]) == (LAYOUT, fingerprint)
        hashes, num_units = dict(description["xxh3_128"]), int(description["num_units"])
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("%s: damaged (%r), left aside; encoding starts cold", folder / DESCRIPTION, error)
        return None
    if not belongs:
        logger.warning("%s: warm units of another tokenizer or layout, left aside; encoding starts cold", folder)
        return None
    arrays = {}
    for name, file_name in ARRAYS.items():
        path = folder / file_name
        if not path.is_file() or xxhash.xxh3_128_hexdigest(path.read_bytes()) != hashes.get(name):
            logger.warning("%s: missing, or not the file that units.json describes; left aside, encoding starts cold", path)
            return None
        # Copy on write, and nothing writes: the pages stay shared, and the kernel sees the type of a table of its own.
        arrays[name] = np.asarray(np.load(path, mmap_mode="c"))
    counters = np.array([num_units, len(arrays["keys"]), len(arrays["ids"]), 0], np.int64)
    return UnitTable(**arrays, counters=counters)
