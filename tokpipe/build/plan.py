"""The plan: the listing of the corpus, cut into splits, with the settings. Made once; every later run is checked against it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokpipe import __version__
from tokpipe.build.config import BuildConfig, differences, from_settings, settings_hash
from tokpipe.build.ends import document_ends
from tokpipe.build.receipts import receipt_name
from tokpipe.build.store import Attempt, Store
from tokpipe.corpus import Inventory, Split, Splits, check_unchanged, plan_splits, read_inventory
from tokpipe.errors import BuildError, CorpusChangedError, SettingsChangedError
from tokpipe.shards import MANIFEST_NAME
from tokpipe.tokenizer import Tokenizer

log = logging.getLogger(__name__)

PLAN = "build/plan.json"
INVENTORY = "build/inventory.arrow"
SPLITS = "build/splits.arrow"
TOKENIZER = "tokenizer"
MODEL = "tokenizer/tokenizer.model"
PLAN_VERSION = 1
MAX_LINES = 10
# Above this much input the words of a part of it decide the vocabulary as well as all of them would.
COUNT_ALL_BYTES = 100_000_000_000
COUNT_ABOUT_BYTES = 50_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `build/plan.json` says."""

    hash: str
    """Names the plan: settings (those of training apart), corpus, given tokenizer. Receipts repeat it."""
    settings: dict[str, Any]
    """The settings that decide the output."""
    max_rejects: float
    """Of the latest run; not part of the hash."""
    corpus_fingerprint: str
    tokenizer_fingerprint: str
    """Of the given tokenizer; empty if one is trained."""
    sources: tuple[str, ...]
    num_files: int
    num_ignored: int
    num_splits: int
    num_bytes: int
    """Of all input files, as they lie on disk."""
    counted: tuple[int, ...]
    """Splits whose words are counted; none with a given tokenizer."""
    inventory: str = INVENTORY
    """Name of the inventory's file in the store."""
    splits: str = SPLITS
    tool_version: str = __version__
    version: int = PLAN_VERSION

    def config(self, out: str) -> BuildConfig:
        """The build's config as tasks need it."""
        return from_settings(self.settings, out=out, max_rejects=self.max_rejects)

    def to_bytes(self) -> bytes:
        """As JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1).encode() + b"\n"


def read_plan(store: Store) -> Plan:
    """Read the plan of an output.

    Raises:
        BuildError: if there is none, or this version cannot read it.
    """
    where = f"{store.out}/{PLAN}"
    try:
        found = json.loads(store.read(PLAN))
        version = found["version"]
        if version == PLAN_VERSION:
            found["sources"], found["counted"] = tuple(found["sources"]), tuple(found["counted"])
            return Plan(**found)
    except FileNotFoundError as error:
        raise BuildError(f"{where}: is not there, so {store.out} is no build. Give the --out of `tokpipe build`.") from error
    except (ValueError, TypeError, KeyError) as error:
        raise BuildError(f"{where}: cannot be understood ({error}). Restore it, or build into another --out.") from error
    raise BuildError(f"{where}: has version {version}, expected {PLAN_VERSION}. Finish it with the tokpipe that began it.")


def make_plan(config: BuildConfig, store: Store) -> Plan:
    """Return the plan of `config.out`: a new one, or the one that is there if settings and corpus still are what they were.

    Raises:
        SettingsChangedError: if the output was begun with other settings, or is a finished dataset without its build folder.
        CorpusChangedError: if files came, went, or changed.
        CorpusError: if there is nothing to read.
        TokenizerError: if the given tokenizer cannot be used.
    """
    inventory = read_inventory(config.corpus)
    tokenizer = Tokenizer.load(config.tokenizer) if config.tokenizer else None
    fingerprint = tokenizer.fingerprint if tokenizer else ""
    if tokenizer:
        document_ends(tokenizer, config)
    if store.exists(PLAN):
        return _go_on(read_plan(store), config, inventory, fingerprint, store)
    if store.exists(MANIFEST_NAME):
        raise SettingsChangedError(
            f"{store.out}: holds a finished dataset but not its {PLAN}, so nobody can tell whether it is this one. "
            "Give another --out."
        )
    return _write_plan(config, inventory, fingerprint, store)


def _write_plan(config: BuildConfig, inventory: Inventory, fingerprint: str, store: Store) -> Plan:
    settings = config.settings()
    splits = plan_splits(inventory, split_bytes=config.corpus.split_bytes)
    fraction = 0.0 if config.tokenizer else config.count_fraction or default_count_fraction(inventory.num_bytes)
    with store.attempt("plan") as attempt:
        inventory.write(attempt.path(INVENTORY))
        splits.write(attempt.path(SPLITS))
        if config.tokenizer:
            _take_in(Path(config.tokenizer), attempt)
        plan = Plan(
            hash=settings_hash(settings, inventory.fingerprint(), fingerprint),
            settings=settings,
            max_rejects=config.max_rejects,
            corpus_fingerprint=inventory.fingerprint(),
            tokenizer_fingerprint=fingerprint,
            sources=inventory.sources,
            num_files=len(inventory),
            num_ignored=len(inventory.ignored),
            num_splits=len(splits),
            num_bytes=inventory.num_bytes,
            counted=counted_splits(splits.sources, fraction),
            inventory=attempt.publish(INVENTORY),
            splits=attempt.publish(SPLITS),
        )
    store.write(PLAN, plan.to_bytes())
    return plan


def _take_in(given: Path, attempt: Attempt) -> None:
    """Publish a given model, with the warm units that lie beside it if its folder was named."""
    if given.is_dir():
        # units.json describes the arrays, so it comes after them.
        names = ["tokenizer.model", *sorted(path.name for path in given.glob("unit*.npy")), "units.json"]
        files = {f"{TOKENIZER}/{name}": given / name for name in names}
    else:
        files = {MODEL: given}
    for name, path in files.items():
        if path.exists():
            shutil.copyfile(path, attempt.path(name))
            attempt.publish(name)


def default_count_fraction(num_bytes: int) -> float:
    """All of a corpus up to 100 GB, above that what gives about 50 GB."""
    return 1.0 if num_bytes <= COUNT_ALL_BYTES else COUNT_ABOUT_BYTES / num_bytes


def counted_splits(sources: Sequence[str], fraction: float) -> tuple[int, ...]:
    """The splits whose words are counted: `fraction` of every source's, evenly spread, at least one of each.

    Example:
        `counted_splits(["en", "en", "en", "en", "hi"], 0.5)` is `(0, 2, 4)`.
    """
    if not fraction:
        return ()
    chosen: list[int] = []
    for _, group in itertools.groupby(range(len(sources)), key=lambda index: sources[index]):
        own = list(group)
        count = min(len(own), max(1, math.ceil(fraction * len(own))))
        chosen += [own[i * len(own) // count] for i in range(count)]
    return tuple(chosen)


def read_splits(store: Store, plan: Plan) -> Splits:
    """The plan's splits, mapped into memory."""
    return Splits.read(store.local(plan.splits))


def check_split(store: Store, plan: Plan, split: Split) -> None:
    """See that what was read is what was planned, before anything made from it is published.

    Raises:
        CorpusChangedError: if a file of the split is not what it was when the plan was made.
    """
    check_unchanged(Inventory.read(store.local(plan.inventory)), [part.path for part in split.parts])


def split_sizes(splits: Splits) -> list[int]:
    """(num_splits,) bytes of each split, as plain integers."""
    return [int(size) for size in np.asarray(splits.num_bytes)]


def _go_on(plan: Plan, config: BuildConfig, inventory: Inventory, fingerprint: str, store: Store) -> Plan:
    """The plan that is there, with what may change taken over."""
    settings = config.settings()
    lines = differences(plan.settings, settings)
    if not lines and plan.tokenizer_fingerprint != fingerprint:
        lines = [f"tokenizer: the file holds another model (fingerprint was {plan.tokenizer_fingerprint}, now {fingerprint})"]
    # A vocabulary that turned out to be too large may be made smaller: counting knows nothing of it.
    if lines and not (all(line.startswith("train.") for line in lines) and not store.exists(receipt_name("train", 0))):
        raise SettingsChangedError(
            f"{store.out}: was begun with other settings:\n"
            + "\n".join(f"  {line}" for line in lines)
            + "\nGive the old settings to go on, or another --out to begin anew."
        )
    if plan.corpus_fingerprint != inventory.fingerprint():
        raise CorpusChangedError(_corpus_changes(plan, inventory, store))
    if lines or plan.max_rejects != config.max_rejects:
        plan = dataclasses.replace(plan, settings=settings, max_rejects=config.max_rejects)
        store.write(PLAN, plan.to_bytes())
    return plan


def _corpus_changes(plan: Plan, inventory: Inventory, store: Store) -> str:
    changes = Inventory.read(store.local(plan.inventory)).diff(inventory)
    shown = list(itertools.islice(changes, MAX_LINES))
    more = sum(1 for _ in changes)
    return (
        f"{plan.settings['corpus']['corpus']}: is not the corpus that {store.out} was begun with:\n"
        + "\n".join(f"  {line}" for line in shown)
        + (f"\n  and {more:,} more" if more else "")
        + "\nPut the files back, or give another --out to begin anew."
    )
