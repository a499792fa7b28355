"""What a build will take, from a small sample of the text: `--dry-run`, and the check that the disk is large enough."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tokpipe.build.config import BuildConfig
from tokpipe.build.count_task import num_text_bytes
from tokpipe.build.store import Store
from tokpipe.corpus import Inventory, RejectLog, Split, Splits, TextBatch, plan_splits, read_inventory, read_split
from tokpipe.engine.progress import human_bytes, human_count, human_seconds
from tokpipe.errors import DiskSpaceError
from tokpipe.shards import idx_num_bytes
from tokpipe.tokenizer import Tokenizer, WordCounter

MAX_SAMPLES = 16
SAMPLE_BYTES = 48_000_000
# Tokens a whitespace word of Hindi or English takes with the default tokenizer (docs/tokenizer.md has the measurement).
TOKENS_PER_WORD = 1.57
# Distinct words of a text: so many in 2^30 bytes, and growing with this power of its size (measured on the corpus of
# docs/benchmarks.md). Training on them and encoding them once takes the seconds below, on one core, whatever the workers.
WORDS_PER_GIB, WORDS_POWER = 4e6, 0.68
TRAIN_SECONDS, TRAIN_SECONDS_PER_MILLION = 3.0, 4.0
# Word tables and what is being written when tasks are under way, as a share of the text.
TABLES_SHARE = 0.1
SAFETY = 1.05
# A disk with this many times the input free is large enough, whatever the text: a byte of zstd is at most some four tokens.
SURELY_ENOUGH = 10


@dataclass(slots=True)
class Sample:
    """What was found in some batches, and how long reading and working on them took on one core."""

    input_bytes: int = 0
    text_bytes: int = 0
    documents: int = 0
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, other: Sample) -> None:
        """Add another sample's numbers."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The answer of `--dry-run`."""

    sources: dict[str, tuple[int, int]]
    """source -> (files, bytes on disk)."""
    examples: dict[str, str]
    """source -> its first file, so that one sees which files became which source."""
    num_splits: int
    ignored: tuple[str, ...]
    documents: int
    text_bytes: int
    tokens: int
    disk_bytes: int
    """What the output will take, and word tables on the way."""
    free_bytes: int
    seconds: float
    workers: int
    assumptions: tuple[str, ...] = field(default=())

    @property
    def fits(self) -> bool:
        """Whether the disk is large enough."""
        return self.disk_bytes <= self.free_bytes

    def describe(self) -> str:
        """A table of sources and the totals, for people."""
        width = max(len(name) for name in self.sources)
        lines = [
            f"{name:<{width}}  {files:>9,} files  {human_bytes(size):>9}  {self.examples[name]}{', ...' if files > 1 else ''}"
            for name, (files, size) in self.sources.items()
        ]
        if self.ignored:
            shown = ", ".join(self.ignored[:5]) + (", ..." if len(self.ignored) > 5 else "")
            lines.append(f"Ignored, for their names say nothing that can be read: {len(self.ignored):,} files ({shown})")
        free = "an unknown amount" if self.free_bytes == sys.maxsize else human_bytes(self.free_bytes)
        lines += [
            f"Splits (tasks): {self.num_splits:,}",
            f"About {human_count(self.documents)} documents, {human_bytes(self.text_bytes)} of text, "
            f"{human_count(self.tokens)} tokens",
            f"Disk: about {human_bytes(self.disk_bytes)} needed, {free} free" + ("" if self.fits else ": TOO SMALL"),
            f"Time: about {human_seconds(self.seconds)} with {self.workers} workers at the speed just measured",
            *self.assumptions,
        ]
        return "\n".join(lines)


def estimate_build(config: BuildConfig, store: Store, *, workers: int) -> Estimate:
    """List, sample and extrapolate; writes nothing.

    Raises:
        CorpusError: if there is nothing to read.
    """
    inventory = read_inventory(config.corpus)
    splits = plan_splits(inventory, split_bytes=config.corpus.split_bytes)
    return estimate_plan(config, inventory, splits, store, workers=workers)


def estimate_plan(config: BuildConfig, inventory: Inventory, splits: Splits, store: Store, *, workers: int) -> Estimate:
    """The estimate of a corpus that is already listed and cut."""
    tokenizer = Tokenizer.load(config.tokenizer) if config.tokenizer else None
    found: dict[str, Sample] = {}
    overall = Sample()
    for split in sampled_splits(splits):
        sample = measure(split, config, tokenizer)
        found.setdefault(split.source, Sample()).add(sample)
        overall.add(sample)
        if overall.text_bytes >= SAMPLE_BYTES:
            break
    sizes = _source_sizes(inventory)
    total = Sample()
    for source, (_, num_bytes) in sizes.items():
        total.add(_scaled(found.get(source, overall), num_bytes))
    bytes_per_token = 2 if tokenizer is None or tokenizer.dtype == "uint16" else 4
    disk = total.tokens * bytes_per_token + idx_num_bytes(total.documents)
    disk += 0 if tokenizer else total.text_bytes * TABLES_SHARE
    training = 0.0 if tokenizer else train_seconds(total.text_bytes, config.train.max_words)
    assumed = (
        f"Assumed: {TOKENS_PER_WORD} tokens a word, that encoding takes as long as counting, and training "
        f"{human_seconds(training)}."
    )
    return Estimate(
        sources=sizes,
        examples=_first_files(inventory),
        num_splits=len(splits),
        ignored=inventory.ignored,
        documents=total.documents,
        text_bytes=total.text_bytes,
        tokens=round(total.tokens),
        disk_bytes=round(disk * SAFETY),
        free_bytes=store.free_bytes(),
        seconds=training + total.seconds / min(workers, max(len(splits), 1)),
        workers=workers,
        assumptions=() if tokenizer else (assumed,),
    )


def train_seconds(text_bytes: float, max_words: int) -> float:
    """About how long training a tokenizer on a text takes: it depends on the distinct words, and no further than `max_words`."""
    words: float = min(max_words, WORDS_PER_GIB * (text_bytes / 2**30) ** WORDS_POWER)
    return TRAIN_SECONDS + TRAIN_SECONDS_PER_MILLION * words / 1e6


def sampled_splits(splits: Splits) -> Iterator[Split]:
    """The first split of every source, then others evenly spread; at most `MAX_SAMPLES`."""
    sources = splits.sources
    firsts = sorted({source: index for index, source in reversed(list(enumerate(sources)))}.values())
    step = max(1, len(sources) // MAX_SAMPLES)
    order = list(dict.fromkeys([*firsts, *range(0, len(sources), step)]))
    for index in order[:MAX_SAMPLES]:
        yield splits[index]


def measure(split: Split, config: BuildConfig, tokenizer: Tokenizer | None) -> Sample:
    """Read one batch of a split and work on it as a build would, by the clock."""
    sample = Sample()
    start = time.perf_counter()
    batch = next(read_split(split, config.corpus, RejectLog()), None)
    reading = time.perf_counter() - start
    if batch is None:
        return Sample(input_bytes=split.num_bytes)
    sample.input_bytes = min(batch.num_input_bytes, split.num_bytes)  # a reader counts whole blocks, however short the split
    sample.documents = len(batch.texts)
    sample.text_bytes = num_text_bytes(batch.texts)
    sample.tokens, working = _tokens_and_seconds(batch, tokenizer)
    passes = 1 if tokenizer else 2
    sample.seconds = passes * (reading + working)
    return sample


def _tokens_and_seconds(batch: TextBatch, tokenizer: Tokenizer | None) -> tuple[float, float]:
    if tokenizer is not None:
        tokenizer.encode_batch(batch.texts.slice(0, 1))  # compiles or loads the kernels, which is not what a build's time goes to
        start = time.perf_counter()
        ids, _ = tokenizer.encode_batch(batch.texts)
        return float(len(ids) + len(batch.texts)), time.perf_counter() - start
    with WordCounter("sample", max_words=1 << 20) as counter:
        counter.add(pa.concat_arrays([batch.texts.slice(0, 1)]))
        start = time.perf_counter()
        counter.add(batch.texts)
        seconds = time.perf_counter() - start
    words = pc.sum(pc.count_substring_regex(batch.texts, r"\s+")).as_py() + len(batch.texts)
    return TOKENS_PER_WORD * words + len(batch.texts), seconds


def _scaled(sample: Sample, num_bytes: int) -> Sample:
    """A sample's numbers for `num_bytes` of input."""
    factor = num_bytes / sample.input_bytes if sample.input_bytes else 0.0
    documents, text_bytes = round(sample.documents * factor), round(sample.text_bytes * factor)
    return Sample(num_bytes, text_bytes, documents, sample.tokens * factor, sample.seconds * factor)


def _source_sizes(inventory: Inventory) -> dict[str, tuple[int, int]]:
    table = pa.table({"source": inventory.table["source"].cast(pa.string()), "num_bytes": inventory.table["num_bytes"]})
    sums = table.group_by("source").aggregate([("num_bytes", "count"), ("num_bytes", "sum")]).sort_by("source").to_pydict()
    rows = zip(sums["source"], sums["num_bytes_count"], sums["num_bytes_sum"], strict=True)
    return {str(name): (int(count), int(size)) for name, count, size in rows}


def _first_files(inventory: Inventory) -> dict[str, str]:
    table = pa.table({"source": inventory.table["source"].cast(pa.string()), "path": inventory.table["path"]})
    firsts = table.group_by("source").aggregate([("path", "min")]).to_pydict()
    return dict(zip(firsts["source"], firsts["path_min"], strict=True))


def check_disk(config: BuildConfig, inventory: Inventory, splits: Splits, store: Store, *, share_left: float) -> None:
    """Refuse to start what would not fit. Samples the text only when the disk is not large enough by far.

    Args:
        config: of the build.
        inventory: the input files.
        splits: the plan's splits.
        store: where the output goes.
        share_left: part of the output that is not written yet.

    Raises:
        DiskSpaceError: if the output would not fit.
    """
    if store.free_bytes() > SURELY_ENOUGH * inventory.num_bytes * share_left:
        return
    estimate = estimate_plan(config, inventory, splits, store, workers=1)
    needed = round(estimate.disk_bytes * share_left)
    if needed > estimate.free_bytes:
        raise DiskSpaceError(
            f"{store.out}: about {human_bytes(needed)} are needed for {human_count(estimate.tokens)} tokens, "
            f"{human_bytes(estimate.free_bytes)} are free. Free some space, or give an --out on a larger disk."
        )
