"""Receipts: the small JSON files that say what a finished task has left. Nothing else marks a task as done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from tokpipe.build.store import Store
from tokpipe.errors import BuildError
from tokpipe.shards import ShardEntry

FOLDER = "build/receipts"
NUM_THREADS = 16
"""An object store answers after tens of milliseconds, however small the question: many are asked at once."""
MAX_PLACES = 5
"""How many refused records a receipt names; the reject files name all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What one task, or one piece of it, has done. Holds no times, so that equal input gives equal bytes."""

    plan: str
    """Hash of the plan it was made for."""
    stage: str
    task: int
    files: tuple[str, ...] = ()
    """Names of published files that are not shards."""
    shards: tuple[ShardEntry, ...] = ()
    num_records: int = 0
    """Records seen: documents and rejects, blank ones apart."""
    num_documents: int = 0
    num_tokens: int = 0
    text_bytes: int = 0
    """UTF-8 bytes of the documents."""
    input_bytes: int = 0
    """Bytes of input in the terms of the inventory."""
    blank: int = 0
    rejects: Mapping[str, int] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    """The first refused records, as `file:position: reason`."""
    checked_bytes: int = 0
    """Bytes of text compared with plain SentencePiece."""
    cursor: tuple[int, ...] = ()
    """Of a piece: where the reader goes on. Empty in a task's receipt."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the stage wants to keep, as JSON values."""

    def to_bytes(self) -> bytes:
        """As JSON with sorted keys."""
        fields = asdict(self)
        fields["shards"] = [entry._asdict() for entry in self.shards]
        return json.dumps(fields, sort_keys=True, ensure_ascii=False, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Receipt:
        """Read what `to_bytes` wrote.

        Raises:
            BuildError: if it is not a receipt; receipts are written whole, so it was damaged or edited.
        """
        try:
            fields = json.loads(data)
            fields["shards"] = tuple(ShardEntry(**entry) for entry in fields["shards"])
            for name in ("files", "places", "cursor"):
                fields[name] = tuple(fields[name])
            return cls(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise BuildError(f"{where}: is no receipt ({error}). Delete it and run the same command again.") from error


def receipt_name(stage: str, task: int) -> str:
    """Where the receipt of a whole task stands."""
    return f"{FOLDER}/{stage}/{task:05d}.json"


def piece_name(stage: str, task: int, piece: int) -> str:
    """Where the receipt of one piece of a task stands until the task's own receipt does."""
    return f"{FOLDER}/{stage}/{task:05d}-{piece:03d}.json"


def finished_tasks(store: Store, stage: str) -> set[int]:
    """Indices with a receipt."""
    stems = [name.rpartition("/")[2].removesuffix(".json") for name in store.names(f"{FOLDER}/{stage}")]
    return {int(stem) for stem in stems if stem.isdigit()}


def read_receipt(store: Store, name: str, plan: str) -> Receipt:
    """Read one receipt of this plan.

    Raises:
        BuildError: if it belongs to another plan.
    """
    where = f"{store.out}/{name}"
    receipt = Receipt.from_bytes(store.read(name), where)
    if receipt.plan != plan:
        raise BuildError(f"{where}: belongs to plan {receipt.plan}, expected {plan}. Delete it and run the same command again.")
    return receipt


def read_pieces(store: Store, stage: str, task: int, plan: str) -> list[Receipt]:
    """Receipts of the pieces of an unfinished task, in order."""
    pieces: list[Receipt] = []
    while store.exists(name := piece_name(stage, task, len(pieces))):
        pieces.append(read_receipt(store, name, plan))
    return pieces


def read_stage(store: Store, stage: str, num_tasks: int, plan: str) -> list[Receipt]:
    """Receipts of every task of a finished stage, in order."""
    names = [receipt_name(stage, task) for task in range(num_tasks)]
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(lambda name: read_receipt(store, name, plan), names))


def add_receipts(receipts: Iterable[Receipt], *, plan: str, stage: str, task: int) -> Receipt:
    """One receipt that says what several do together; their facts and cursors are left out."""
    parts = list(receipts)
    rejects: dict[str, int] = {}
    for part in parts:
        for reason, count in part.rejects.items():
            rejects[reason] = rejects.get(reason, 0) + count
    totals = {
        name: sum(getattr(part, name) for part in parts)
        for name in ("num_records", "num_documents", "num_tokens", "text_bytes", "input_bytes", "blank", "checked_bytes")
    }
    return Receipt(
        plan=plan,
        stage=stage,
        task=task,
        files=tuple(file for part in parts for file in part.files),
        shards=tuple(shard for part in parts for shard in part.shards),
        rejects=dict(sorted(rejects.items())),
        places=tuple(place for part in parts for place in part.places)[:MAX_PLACES],
        **totals,
    )
