"""From receipts to a dataset: the manifest, written last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from tokpipe import __version__
from tokpipe.build.ends import document_ends
from tokpipe.build.plan import MODEL, Plan
from tokpipe.build.receipts import NUM_THREADS, Receipt, add_receipts, read_stage, receipt_name
from tokpipe.build.rejects import check_all
from tokpipe.build.store import Store, write_by
from tokpipe.build.tokenize_task import TOKENIZE
from tokpipe.errors import BuildError, CorpusError
from tokpipe.shards import (
    BIN_SUFFIX,
    IDX_SUFFIX,
    MANIFEST_NAME,
    Manifest,
    ShardEntry,
    TokenizerEntry,
    dataset_id,
    write_manifest,
)
from tokpipe.tokenizer import Tokenizer


def finish_dataset(store: Store, plan: Plan) -> Manifest:
    """Write `dataset.json` from the receipts of a finished tokenize stage.

    Raises:
        TooManyRejectsError: if more records were refused than allowed.
        CorpusError: if there is no document, or none that is not held out.
        BuildError: if a file that a receipt names is not there.
    """
    receipts = read_stage(store, TOKENIZE, plan.num_splits, plan.hash)
    check_all(receipts, plan.max_rejects)
    check_files(store, receipts)
    total = add_receipts(receipts, plan=plan.hash, stage=TOKENIZE, task=0)
    check_documents(total, plan)
    if all(shard.held_out for shard in total.shards):
        raise CorpusError(
            f"{plan.settings['corpus']['corpus']}: all of its {total.num_documents:,} documents are held out. "
            "Lower --validation, in another --out."
        )
    manifest = make_manifest(store, plan, total)
    write_by(store, MANIFEST_NAME, lambda folder: write_manifest(folder, manifest))
    return manifest


def check_documents(total: Receipt, plan: Plan) -> None:
    """Refuse a corpus without a single document.

    Raises:
        CorpusError: if so.
    """
    if not total.num_documents:
        raise CorpusError(
            f"{plan.settings['corpus']['corpus']}: holds no document ({total.num_records:,} records, "
            f"{sum(total.rejects.values()):,} of them refused; {total.blank:,} blank lines). Give a corpus with text."
        )


def make_manifest(store: Store, plan: Plan, total: Receipt) -> Manifest:
    """The manifest of a plan whose receipts add up to `total`."""
    tokenizer = Tokenizer.load(store.local(MODEL))
    config = plan.config(store.out)
    ends = document_ends(tokenizer, config)
    shards = ordered(total.shards, plan.sources)
    return Manifest(
        dataset_id=dataset_id(tokenizer.fingerprint, shards),
        tool_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tokenizer=TokenizerEntry(
            fingerprint=tokenizer.fingerprint,
            vocab_size=tokenizer.vocab_size,
            eos_id=ends.eos_id,
            path=MODEL,
            bos_id=tokenizer.bos_id,
            prepend_bos=config.prepend_bos,
        ),
        dtype=tokenizer.dtype,
        sources=tuple(source for source in plan.sources if any(shard.source == source for shard in shards)),
        shards=shards,
        seed=config.seed,
        settings={
            **plan.settings,
            "max_rejects": plan.max_rejects,
            "plan": plan.hash,
            "corpus_fingerprint": plan.corpus_fingerprint,
        },
        rejects=dict(total.rejects),
        skipped={"blank": total.blank} if total.blank else {},
    )


def ordered(shards: Iterable[ShardEntry], sources: Sequence[str]) -> tuple[ShardEntry, ...]:
    """The dataset's order: by source, training before held-out, then by task and piece (the order they come in)."""
    rank = {source: number for number, source in enumerate(sources)}
    return tuple(sorted(shards, key=lambda shard: (rank[shard.source], shard.held_out)))


def check_files(store: Store, receipts: Iterable[Receipt]) -> None:
    """See that every file that a receipt names is there and as long as it says; the bytes are `tokpipe verify`'s.

    Raises:
        BuildError: naming the file and the receipt to delete.
    """
    expected = [
        (receipt, shard.name + suffix, num_bytes)
        for receipt in receipts
        for shard in receipt.shards
        for suffix, num_bytes in ((BIN_SUFFIX, shard.bin_bytes), (IDX_SUFFIX, shard.idx_bytes))
    ]
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        sizes = pool.map(store.num_bytes, [name for _, name, _ in expected])
        for (receipt, name, num_bytes), found in zip(expected, sizes, strict=True):
            if found != num_bytes:
                where = f"{store.out}/{receipt_name(receipt.stage, receipt.task)}"
                state = "is not there" if found < 0 else f"has {found:,} bytes"
                raise BuildError(
                    f"{store.out}/{name}: {state}, but {where} promises {num_bytes:,} bytes. "
                    f"Delete {where} and run the same command again; only that task is redone."
                )
