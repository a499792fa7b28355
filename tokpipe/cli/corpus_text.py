"""Options that say which text a command reads, and the reading of it in this one process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import click
import pyarrow as pa

from tokpipe.build.held_out import held_out_mask
from tokpipe.cli.build_options import CORPUS_OPTIONS
from tokpipe.cli.option_groups import with_options
from tokpipe.corpus import CorpusConfig, RejectLog, plan_splits, read_inventory, read_row_groups, read_split
from tokpipe.tokenizer import WordCounter, document_hashes, merge_counts
from tokpipe.tokenizer.counts import in_few

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


def one_part(text: str) -> tuple[int, int]:
    """`I/N` as a pair: every N-th split from the I-th on."""
    first, _, second = text.partition("/")
    if not (first.isdecimal() and second.isdecimal() and int(first) < int(second)):
        raise click.BadParameter(f"{text!r} is not I/N with 0 <= I < N")
    return int(first), int(second)


corpus_options = with_options(
    [click.option("--corpus", required=True, help="A folder or file, any fsspec URL, or hf:NAME[:CONFIG[:SPLIT]].")],
    CORPUS_OPTIONS,
)


def iter_texts(
    config: CorpusConfig, *, held_out: float, keep_held_out: bool, part: tuple[int, int] = (0, 1)
) -> Iterator[tuple[str, pa.LargeStringArray]]:
    """(source, documents) batches of about 16 MB; of the documents either those held out by content hash, or the others.

    `part` (i, n) takes every n-th split from the i-th on. Says at the end what was rejected.
    """
    inventory = read_inventory(config)
    row_groups = read_row_groups(inventory, split_bytes=config.split_bytes)
    splits = plan_splits(inventory, split_bytes=config.split_bytes, row_groups=row_groups)
    with RejectLog() as rejects:
        for index in range(part[0], len(splits), part[1]):
            split = splits[index]
            for batch in read_split(split, config, rejects):
                texts = batch.texts
                if held_out or keep_held_out:
                    mask = held_out_mask(document_hashes(texts), held_out)
                    texts = texts.filter(pa.array(mask if keep_held_out else ~mask))
                yield split.source, texts
            logger.info("read split %d of %d (%s)", index + 1, len(splits), split.source)
        if rejects.num_rejects:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(rejects.counts.items()))
            logger.warning("rejected %s records: %s", f"{rejects.num_rejects:,}", reasons)


def read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, each made in a thread while the one before is used: reading and kernels let go of the interpreter.

    The first one is begun at once.
    """
    end: Any = object()
    pool = ThreadPoolExecutor(1, thread_name_prefix="tokpipe-read")
    ahead = pool.submit(next, items, end)

    def iterate(ahead: Future[Item]) -> Iterator[Item]:
        with pool:
            while (item := ahead.result()) is not end:
                ahead = pool.submit(next, items, end)
                yield item

    return iterate(ahead)


@contextmanager
def counted_texts(config: CorpusConfig, *, held_out: float, part: tuple[int, int], beside: Path) -> Iterator[list[Path]]:
    """Count a corpus in this process: at most 64 counts files that lie beside a path for as long as the block lasts."""
    beside.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".counts-", dir=beside.parent) as name:
        folder = Path(name)
        finished: list[Path] = []
        texts = read_ahead(iter_texts(config, held_out=held_out, keep_held_out=False, part=part))
        with WordCounter("") as nothing:  # loads the kernels, a third of a second, while the first batch is read
            nothing.add(pa.array([""], pa.large_string()))
        # Splits come source by source: one counter in memory at a time is enough.
        for source, batches in groupby(texts, key=itemgetter(0)):
            with WordCounter(source, spill_folder=folder) as counter:
                for _, batch in batches:
                    counter.add(batch)
                finished.append(folder / f"{len(finished):05d}.counts")
                counter.write(finished[-1])
        if not finished:
            raise click.ClickException(f"{config.corpus}: no text to count in part {part[0]}/{part[1]}")
        yield in_few(finished, folder, merge_counts)
