"""The main job, start to end: plan, run every stage's missing tasks, write the manifest, lay out a partition, report."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from tokpipe.build.config import BuildConfig
from tokpipe.build.count_task import COUNT
from tokpipe.build.estimate import check_disk
from tokpipe.build.finish import check_documents, finish_dataset
from tokpipe.build.layout import lay_out
from tokpipe.build.plan import Plan, make_plan, read_splits, split_sizes
from tokpipe.build.receipts import add_receipts, finished_tasks, read_stage
from tokpipe.build.rejects import check_all
from tokpipe.build.report import REPORT, BuildReport, source_reports
from tokpipe.build.store import Store, open_store, output_errors
from tokpipe.build.tasks import open_tasks, stages, task_spec
from tokpipe.build.tokenize_task import TOKENIZE
from tokpipe.corpus import Inventory
from tokpipe.engine.base import Engine, ProgressSink
from tokpipe.engine.interrupts import sigterm_as_interrupt
from tokpipe.engine.local import LocalEngine
from tokpipe.engine.progress import NoProgress, human_bytes
from tokpipe.errors import BuildError, BuildInterruptedError
from tokpipe.shards import MANIFEST_NAME, Manifest, read_manifest

log = logging.getLogger(__name__)

MAX_IGNORED = 5
MAX_SOURCES = 20


def plan_build(config: BuildConfig) -> Plan:
    """Make or check the plan of `config.out`, and nothing else.

    Raises:
        SettingsChangedError, CorpusChangedError: see `make_plan`.
        OutputLockedError: if a build runs there.
    """
    store = open_store(config.out)
    with output_errors(config.out), store.lock():
        return make_plan(config, store)


def build(config: BuildConfig, *, engine: Engine | None = None, progress: ProgressSink | None = None) -> BuildReport:
    """Build a dataset, or go on with it, or say that it is finished.

    Args:
        config: what to build.
        engine: runs the tasks; without one, one process per core here, ended before this returns.
        progress: told how far each stage is.

    Raises:
        TokpipeError: whatever keeps the dataset from being finished; what is done stays done.
    """
    store = open_store(config.out)
    own_engine = engine or LocalEngine()
    began = time.monotonic()
    try:
        with sigterm_as_interrupt(), output_errors(config.out), store.lock():
            plan = make_plan(config, store)
            manifest = _finished(store, plan)
            already = manifest is not None
            if manifest is None:
                try:
                    _run_stages(config, plan, store, own_engine, progress or NoProgress())
                finally:
                    store.remove_dead_attempts()  # of workers that were killed, by somebody or by a Ctrl-C
                manifest = finish_dataset(store, plan)
            notices = lay_out(config.partition, store, seed=config.seed)
            report = _report(store, plan, manifest, notices, already=already, seconds=time.monotonic() - began)
            if not already or not store.exists(REPORT):
                store.write(REPORT, (report.describe() + "\n").encode())
            return report
    except KeyboardInterrupt:
        raise BuildInterruptedError(f"Stopped; what is done stays done. The same command goes on, --out {config.out}.") from None
    finally:
        if engine is None:
            own_engine.close()


def tokenize(config: BuildConfig, *, engine: Engine | None = None, progress: ProgressSink | None = None) -> BuildReport:
    """Build with the tokenizer that `config` names: no training, no partition.

    Raises:
        ValueError: if `config.tokenizer` is empty.
        TokpipeError: as `build`.
    """
    if not config.tokenizer:
        raise ValueError("tokenize needs a config with a tokenizer; build trains one")
    return build(replace(config, partition=replace(config.partition, write=False)), engine=engine, progress=progress)


def _finished(store: Store, plan: Plan) -> Manifest | None:
    """The manifest, if it is there and of this plan."""
    if not store.exists(MANIFEST_NAME):
        return None
    manifest = read_manifest(store.out)
    if manifest.settings.get("plan") != plan.hash:
        raise BuildError(
            f"{store.out}: its {MANIFEST_NAME} is of plan {manifest.settings.get('plan')}, its build folder of {plan.hash}. "
            "Two datasets were mixed here. Give another --out."
        )
    return manifest


def _run_stages(config: BuildConfig, plan: Plan, store: Store, engine: Engine, progress: ProgressSink) -> None:
    splits = read_splits(store, plan)
    sizes = split_sizes(splits)
    done = finished_tasks(store, TOKENIZE)
    left = sum(size for index, size in enumerate(sizes) if index not in done)
    inventory = Inventory.read(store.local(plan.inventory))
    log.info("%s", _overview(plan, inventory))
    check_disk(config, inventory, splits, store, share_left=left / max(1, sum(sizes)))
    for stage in stages(plan):
        if open_tasks(config.out, stage).missing():
            log.debug("stage %s", stage)
            engine.run(task_spec(config.out, stage), progress)
        if stage == COUNT:
            receipts = read_stage(store, COUNT, len(plan.counted), plan.hash)
            check_all(receipts, plan.max_rejects)
            check_documents(add_receipts(receipts, plan=plan.hash, stage=COUNT, task=0), plan)


def _overview(plan: Plan, inventory: Inventory) -> str:
    """What is about to be read, and what is not."""
    ignored = inventory.ignored_table.slice(0, MAX_IGNORED).to_pylist()
    text = f"{plan.num_files:,} files, {human_bytes(plan.num_bytes)}, sources {', '.join(plan.sources[:MAX_SOURCES])}"
    text += f" and {len(plan.sources) - MAX_SOURCES:,} more" if len(plan.sources) > MAX_SOURCES else ""
    text += f", in {plan.num_splits:,} splits"
    if plan.num_ignored:
        more = ", ..." if plan.num_ignored > len(ignored) else ""
        text += f"; ignored because of their names: {plan.num_ignored:,} ({', '.join(ignored)}{more})"
    return text


def _report(
    store: Store, plan: Plan, manifest: Manifest, notices: tuple[str, ...], *, already: bool, seconds: float
) -> BuildReport:
    receipts = read_stage(store, TOKENIZE, plan.num_splits, plan.hash)
    ignored = Inventory.read(store.local(plan.inventory)).ignored_table
    return BuildReport(
        out=store.out,
        dataset_id=manifest.dataset_id,
        vocab_size=manifest.tokenizer.vocab_size,
        sources=source_reports(manifest, receipts, read_splits(store, plan).sources),
        num_shards=len(manifest.shards),
        rejects=dict(manifest.rejects),
        blank=manifest.skipped.get("blank", 0),
        ignored=tuple(ignored.slice(0, MAX_IGNORED).to_pylist()),
        num_ignored=len(ignored),
        checked_bytes=sum(receipt.checked_bytes for receipt in receipts),
        notices=notices,
        already_finished=already,
        seconds=0.0 if already else seconds,
    )
