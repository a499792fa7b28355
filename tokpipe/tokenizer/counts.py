"""Count the words of a whole corpus in bounded memory, and merge such counts.

Training BPE needs no text, only how often each word occurs. So every task counts the words of its splits in a table of its
own, spills the table as a sorted run when it is full, and writes one sorted file; files merge, in any order and any number of
steps, to the same bytes. `docs/tokenizer.md` says what a word is and what is dropped.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokpipe.errors import TrainingError
from tokpipe.tokenizer import word_kernels as kernels
from tokpipe.tokenizer.counts_file import (
    SCRIPTS,
    CountsBlock,
    CountsInfo,
    CountsWriter,
    SourceTotals,
    iter_counts,
    merged_info,
    read_counts_info,
)
from tokpipe.tokenizer.hashing import column_bytes
from tokpipe.tokenizer.word_order import merge_rows, sort_words, take_words, upper_bound

MAX_WORD_BYTES = 4096
"""Longer words (base64, mostly) are dropped and counted; the trainer's limit is 65,535 characters."""
FIRST_WORDS = 1 << 16
"""Words a counter has room for before its table grows for the first time."""
MAX_FAN_IN = 64
"""Files, or spilled runs, merged at once; more are merged in groups first. Each takes a few MB while it is read."""


class WordCounter:
    """Counts the words of one source. Close it, or use it in a `with` block, to remove what it spilled.

    Memory is about 60 bytes for each of `max_words` while counting and twice that while a run is sorted: 0.5 GB by default.

    Example:
        with WordCounter("hi") as counter:
            counter.add(pa.array(["नमस्ते दुनिया"], pa.large_string()))
            counter.write("hi.counts")
    """

    def __init__(
        self,
        source: str,
        *,
        spill_folder: str | os.PathLike[str] | None = None,
        max_words: int = 1 << 22,
        max_word_bytes: int = MAX_WORD_BYTES,
    ):
        """Open an empty counter.

        Args:
            source: the name that the counts are kept under.
            spill_folder: where runs go that do not fit in memory; the system's temporary folder by default.
            max_words: distinct words held in memory, a power of two.
            max_word_bytes: longer words are dropped and counted.

        Raises:
            ValueError: if `max_words` is not a power of two or `max_word_bytes` is not in 1 to 65,535.
        """
        if max_words < 2 or max_words & (max_words - 1):
            raise ValueError(f"max_words must be a power of two, at least 2, got {max_words}")
        if not 1 <= max_word_bytes <= 65_535:
            raise ValueError(f"max_word_bytes must be in [1, 65535], the trainer's own limit, got {max_word_bytes}")
        self.source = source
        self.max_word_bytes = max_word_bytes
        self._table = np.zeros(2 * min(max_words, FIRST_WORDS), np.uint64)
        self._keys = np.empty(16 * max_words + 2 * max_word_bytes, np.uint8)
        self._key_start = np.zeros(max_words + 1, np.int64)
        self._counts = np.empty(max_words, np.int64)
        self._state = np.zeros(kernels.NUM_STATE, np.int64)
        self._documents = self._text_bytes = self._words = 0
        self._script_bytes = np.zeros(len(SCRIPTS), np.int64)
        self._spill = tempfile.TemporaryDirectory(prefix="tokpipe-counts-", dir=spill_folder)
        self._runs: list[Path] = []

    def __enter__(self) -> WordCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the spilled runs. Counts not yet written are lost."""
        self._spill.cleanup()

    @property
    def num_runs(self) -> int:
        """How many times the table was full."""
        return len(self._runs)

    def add(self, texts: pa.LargeStringArray) -> None:
        """Count the words of some documents: valid UTF-8, no nulls.

        Raises:
            ValueError: if the column holds nulls or is not a `large_string` array.
        """
        data, starts = column_bytes(texts)
        # One machine-code version for all: Arrow's buffers are writable or not, as they were made.
        data = data.view()
        data.flags.writeable = False
        self._documents += len(texts)
        self._text_bytes += len(data)
        words = (self._keys, self._key_start, self._counts, self._state, self.max_word_bytes)
        while not kernels.count_words(data, starts, self._table, *words):
            if len(self._table) < 2 * len(self._counts) and 2 * self._state[kernels.NUM_WORDS] >= len(self._table):
                self._grow()
            else:
                self._spill_run()

    def write(self, path: str | os.PathLike[str]) -> CountsInfo:
        """Write the counts as a file, whole or not at all. Ends the counting: the table is empty afterwards."""
        if self._runs:
            self._spill_run()
            self._write_merged(in_few(self._runs, Path(self._spill.name), self._write_merged), path)
        else:
            self._write_block(self._take(), path)
        return read_counts_info(path)

    def _grow(self) -> None:
        """Four times the table: while it is small it stays in the processor's caches."""
        self._table = np.zeros(min(4 * len(self._table), 2 * len(self._counts)), np.uint64)
        kernels.fill_table(self._keys, self._key_start, int(self._state[kernels.NUM_WORDS]), self._table)

    def _info(self) -> CountsInfo:
        state = self._state
        totals = SourceTotals(
            documents=self._documents,
            text_bytes=self._text_bytes,
            words=self._words,
            script_bytes={name: int(value) for name, value in zip(SCRIPTS, self._script_bytes, strict=True)},
            tabs=int(state[kernels.TABS]),
            long_words=int(state[kernels.LONG_WORDS]),
            long_bytes=int(state[kernels.LONG_BYTES]),
            reserved_words=int(state[kernels.RESERVED_WORDS]),
            reserved_bytes=int(state[kernels.RESERVED_BYTES]),
        )
        return CountsInfo(totals={self.source: totals}, max_word_bytes=self.max_word_bytes)

    def _take(self) -> CountsBlock:
        """Empty the table into a sorted block."""
        num_words = int(self._state[kernels.NUM_WORDS])
        starts, counts = self._key_start[: num_words + 1], self._counts[:num_words]
        scripts = kernels.word_scripts(self._keys, starts)
        for script in range(len(SCRIPTS)):
            of_script = scripts == script
            self._script_bytes[script] += int((np.diff(starts)[of_script] * counts[of_script]).sum())
        self._words += int(counts.sum())
        order = sort_words(self._keys, starts)
        keys, sorted_starts = take_words(self._keys, starts, order)
        block = CountsBlock(keys, sorted_starts, np.zeros(num_words, np.uint16), counts[order])
        self._table[:] = 0
        self._state[[kernels.NUM_WORDS, kernels.NUM_KEY_BYTES]] = 0
        return block

    def _spill_run(self) -> None:
        path = Path(self._spill.name) / f"run-{len(self._runs):05d}.counts"
        self._write_block(self._take(), path)
        self._runs.append(path)

    def _write_merged(self, runs: Sequence[Path], path: str | os.PathLike[str]) -> None:
        with CountsWriter(path, self._info()) as writer:
            for block in _merge([iter_counts(run) for run in runs]):
                writer.write(block)

    def _write_block(self, block: CountsBlock, path: str | os.PathLike[str]) -> None:
        with CountsWriter(path, self._info()) as writer:
            writer.write(block)


def _cut(heads: list[CountsBlock]) -> tuple[bytes, int]:
    """The smallest last row of the blocks: every row up to it is already in memory."""
    return min((block.keys[block.starts[-2] : block.starts[-1]].tobytes(), int(block.sources[-1])) for block in heads)


def _merge_all(blocks: list[CountsBlock]) -> CountsBlock:
    """Merge blocks in pairs, pairs of pairs, and so on."""
    while len(blocks) > 1:
        pairs = [blocks[i : i + 2] for i in range(0, len(blocks), 2)]
        blocks = [CountsBlock(*merge_rows(pair[0].rows, pair[1].rows)) if len(pair) == 2 else pair[0] for pair in pairs]
    return blocks[0]


def _merge(runs: Sequence[Iterator[CountsBlock]]) -> Iterator[CountsBlock]:
    """Merge sorted runs while holding one block of each."""
    heads: dict[int, CountsBlock] = {}
    for number, run in enumerate(runs):
        first = next(run, None)
        if first is not None:
            heads[number] = first
    while heads:
        word, source = _cut(list(heads.values()))
        word_array = np.frombuffer(word, np.uint8)
        ready = []
        for number in sorted(heads):
            block = heads[number]
            stop = int(upper_bound(block.keys, block.starts, block.sources, word_array, source))
            if stop:
                ready.append(block.slice(0, stop))
            if stop < len(block):
                heads[number] = block.slice(stop, len(block))
                continue
            following = next(runs[number], None)
            if following is None:
                del heads[number]
            else:
                heads[number] = following
        yield _merge_all(ready)


def _renumbered(blocks: Iterator[CountsBlock], numbers: NDArray[np.uint16]) -> Iterator[CountsBlock]:
    for block in blocks:
        yield CountsBlock(block.keys, block.starts, numbers[block.sources], block.counts)


def in_few(paths: Sequence[Path], folder: Path, merge: Callable[[Sequence[Path], Path], object]) -> list[Path]:
    """At most 64 files with the same rows: the first 64 are merged into one in `folder` as long as there are more.

    What lies in `folder` is removed once it is merged.
    """
    few, number = list(paths), 0
    while len(few) > MAX_FAN_IN:
        merged = folder / f"merged-{number:05d}.counts"
        merge(few[:MAX_FAN_IN], merged)
        for path in few[:MAX_FAN_IN]:
            if path.parent == folder:
                path.unlink()
        few, number = [*few[MAX_FAN_IN:], merged], number + 1
    return few


def merge_counts(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> CountsInfo:
    """Merge counts files into one, in bounded memory (a few MB a file, at most 64 files at a time).

    The result's bytes do not depend on the order of `paths`, nor on whether they were merged in several steps.

    Raises:
        TrainingError: if there are no files, one is no counts file, or they were made with different limits.
    """
    if not paths:
        raise TrainingError("no word counts to merge: give at least one file")
    if len(paths) > MAX_FAN_IN:
        with tempfile.TemporaryDirectory(prefix=".merge-", dir=Path(out).parent) as name:
            folder = Path(name)
            return merge_counts(in_few([Path(path) for path in paths], folder, merge_counts), out)
    info, blocks = merged_counts(paths)
    with CountsWriter(out, info) as writer:
        for block in blocks:
            writer.write(block)
    return read_counts_info(out)


def merged_counts(paths: Sequence[str | os.PathLike[str]]) -> tuple[CountsInfo, Iterator[CountsBlock]]:
    """What at most 64 counts files hold together, and their rows as those of one file, merged while they are read.

    Raises:
        TrainingError: if one is no counts file, they were made with different limits, or there are more than 64.
    """
    if len(paths) > MAX_FAN_IN:
        raise TrainingError(f"{len(paths)} counts files, and at most {MAX_FAN_IN} are read at once: `merge-counts` them first.")
    infos = [read_counts_info(path) for path in paths]
    info = merged_info(infos)
    position = {name: number for number, name in enumerate(info.sources)}
    runs = []
    for path, part in zip(paths, infos, strict=True):
        # Sorted names stay in order, so renumbered rows stay sorted.
        numbers = np.array([position[name] for name in part.sources], np.uint16)
        runs.append(_renumbered(iter_counts(path), numbers))
    return info, _merge(runs) if len(runs) > 1 else runs[0]
