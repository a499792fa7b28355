"""How many records may be refused, checked while a task reads and again over all receipts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokpipe.build.plan import Plan
from tokpipe.build.receipts import MAX_PLACES, Receipt
from tokpipe.corpus import RejectLog
from tokpipe.errors import TooManyRejectsError

# A task judges the whole corpus from its own records only when it has seen some, and only when it is far over.
MIN_RECORDS = 1000
MARGIN = 2.0


class PieceRejects(RejectLog):
    """A reject log that starts over, with another file, at each piece of a task."""

    def next_piece(self, path: Path) -> None:
        """Close this piece's file and begin another, everything at zero."""
        self.close()
        path.unlink(missing_ok=True)
        self._path = path
        self.counts = Counter()
        self.first = []
        self.num_records = self.blank = 0


def places(log: RejectLog) -> tuple[str, ...]:
    """The first refused records in words."""
    return tuple(f"{place.path}, {place.position}: {place.reason} {place.detail}".rstrip() for place in log.first[:MAX_PLACES])


def num_counted(rejects: Iterable[tuple[str, int]]) -> int:
    """Refused records that count: empty ones do not."""
    return sum(count for reason, count in rejects if reason != "empty")


def check_task(log: RejectLog, input_bytes: int, plan: Plan) -> None:
    """Stop a task that alone has refused more than the whole corpus may, judged by its own records per byte.

    Raises:
        TooManyRejectsError: if so, with the first places.
    """
    if log.num_records < MIN_RECORDS or not input_bytes:
        return
    records = log.num_records * max(1.0, plan.num_bytes / input_bytes)
    if log.num_rejects > MARGIN * plan.max_rejects * records:
        raise TooManyRejectsError(_message(log.num_rejects, log.num_records, plan.max_rejects, places(log), "so far"))


def check_all(receipts: Iterable[Receipt], max_rejects: float) -> None:
    """Check the share of refused records over all tasks.

    Raises:
        TooManyRejectsError: if it is above `max_rejects`, with the first places.
    """
    rejects = records = 0
    first: list[str] = []
    for receipt in receipts:
        rejects += num_counted(receipt.rejects.items())
        records += receipt.num_records
        first += receipt.places[: MAX_PLACES - len(first)]
    if rejects > max_rejects * records:
        raise TooManyRejectsError(_message(rejects, records, max_rejects, tuple(first), "in all"))


def _message(rejects: int, records: int, max_rejects: float, first: tuple[str, ...], when: str) -> str:
    share = rejects / records
    return (
        f"{rejects:,} of {records:,} records were refused {when} ({share:.2%}), --max-rejects allows {max_rejects:.2%}. "
        "The first ones (file, byte or row: reason):\n"
        + "\n".join(f"  {place}" for place in first)
        + f"\nMend the files, or run the same command with a larger --max-rejects, e.g. {share * 1.1:.2g}."
    )
