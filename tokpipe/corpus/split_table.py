"""Splits as a memory-mapped Arrow file: a worker loads the one split it works on and none of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokpipe.corpus.formats import RANGE_FORMATS
from tokpipe.corpus.inventory import Inventory
from tokpipe.corpus.splits import EXPANSION, RANGES, ROW_GROUPS, WHOLE, PartArrays, plan_parts
from tokpipe.corpus.storage import join, open_arrow, unreadable
from tokpipe.errors import CorpusError, UnreadableFileError

PART_TYPE = pa.struct(
    [
        ("path", pa.large_string()),
        ("format", pa.string()),
        ("compression", pa.string()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("num_bytes", pa.int64()),
    ]
)
SCHEMA = pa.schema([("source", pa.string()), ("num_bytes", pa.int64()), ("parts", pa.large_list(PART_TYPE))])
_NUM_THREADS = 16


class Part(NamedTuple):
    """One file, or one range of it."""

    path: str
    """As in the inventory: relative to the split's root."""
    format: str
    compression: str
    """What the inventory took it for; the reader of a whole file asks its first bytes again."""
    start: int
    """First byte, or first row group of a Parquet file."""
    stop: int
    """End byte or row group, half-open; -1 for a whole file."""
    num_bytes: int
    """Share of the file's size on disk."""


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads, all of one source."""

    index: int
    source: str
    root: str
    parts: tuple[Part, ...]
    num_bytes: int
    """Size on disk of all parts together."""


class Splits(Sequence[Split]):
    """All splits of a plan. Indexing builds that one split only."""

    def __init__(self, root: str, table: pa.Table) -> None:
        self.root = root
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> Split:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(f"split {index} of {len(self)}")
        row = self._table.slice(index, 1)
        parts = tuple(Part(*entry.values()) for entry in row["parts"][0].as_py())
        return Split(index, str(row["source"][0].as_py()), self.root, parts, int(row["num_bytes"][0].as_py()))

    @property
    def sources(self) -> list[str]:
        """(num_splits,) source of each split."""
        return [str(name) for name in self._table["source"].to_pylist()]

    @property
    def num_bytes(self) -> NDArray[np.int64]:
        """(num_splits,) int64 sizes on disk, without loading any split."""
        sizes: NDArray[np.int64] = self._table["num_bytes"].to_numpy()
        return sizes

    def write(self, path: str | PathLike[str]) -> None:
        """Write an Arrow file that `read` maps into memory. Equal splits give equal bytes."""
        table = self._table.replace_schema_metadata({b"root": self.root.encode("utf-8", "surrogateescape")})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Splits:
        """Map what `write` wrote; costs the same for ten parts and ten million.

        Raises:
            CorpusError: if the file is not a table of splits.
        """
        try:
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            root = (table.schema.metadata or {})[b"root"].decode("utf-8", "surrogateescape")
        except (OSError, KeyError, pa.ArrowInvalid) as error:
            raise CorpusError(f"{path}: not a plan that tokpipe wrote ({error}). Delete it and plan again.") from error
        return cls(root, table)


def read_row_groups(inventory: Inventory, *, split_bytes: int) -> dict[int, list[int]]:
    """Read the footers of the Parquet files above `split_bytes`, concurrently.

    Returns:
        Row of the inventory -> compressed bytes of each row group.

    Raises:
        UnreadableFileError: if a footer is missing or damaged.
    """
    wanted = pc.and_(
        pc.equal(inventory.table["format"].cast(pa.string()), "parquet"), pc.greater(inventory.table["num_bytes"], split_bytes)
    )
    rows = np.flatnonzero(wanted.to_numpy()).tolist()
    names = [join(inventory.root, inventory.table["path"][row].as_py()) for row in rows]
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        return dict(zip(rows, pool.map(_row_group_sizes, names), strict=True))


def _row_group_sizes(name: str) -> list[int]:
    try:
        with open_arrow(name) as file:
            footer = pq.ParquetFile(file).metadata
    except UnreadableFileError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFileError(unreadable(name, "Parquet", error)) from error
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    return [sum(group.column(j).total_compressed_size for j in range(group.num_columns)) for group in groups]


def plan_splits(inventory: Inventory, *, split_bytes: int, row_groups: Mapping[int, Sequence[int]] | None = None) -> Splits:
    """Lay an inventory out into splits of about `split_bytes` of text, source by source.

    Args:
        inventory: the input files.
        split_bytes: about how many bytes of text one split holds.
        row_groups: see `read_row_groups`, which is asked if this is not given.
    """
    if row_groups is None:
        row_groups = read_row_groups(inventory, split_bytes=split_bytes)
    formats = inventory.table["format"].cast(pa.string())
    plain = pc.equal(inventory.table["compression"].cast(pa.string()), "").to_numpy()
    in_ranges = pc.is_in(formats, pa.array(sorted(RANGE_FORMATS))).to_numpy() & plain
    cutting = np.where(in_ranges, RANGES, np.where(pc.equal(formats, "parquet").to_numpy(), ROW_GROUPS, WHOLE)).astype(np.int8)
    num_bytes: NDArray[np.int64] = inventory.table["num_bytes"].to_numpy()
    names = inventory.sources
    source = pc.index_in(inventory.table["source"].cast(pa.string()), pa.array(names, pa.string())).to_numpy().astype(np.int64)
    weight = np.where(plain, num_bytes, num_bytes * EXPANSION)
    parts = plan_parts(num_bytes, source, cutting, weight, row_groups, split_bytes=split_bytes)
    return Splits(inventory.root, _split_table(inventory, parts))


def _split_table(inventory: Inventory, parts: PartArrays) -> pa.Table:
    rows = inventory.table.take(pa.array(parts.file))
    columns = [
        rows["path"].combine_chunks(),
        rows["format"].cast(pa.string()).combine_chunks(),
        rows["compression"].cast(pa.string()).combine_chunks(),
        pa.array(parts.start),
        pa.array(parts.stop),
        pa.array(parts.num_bytes),
    ]
    columns = [column.chunk(0) if isinstance(column, pa.ChunkedArray) else column for column in columns]
    flat = pa.StructArray.from_arrays(columns, fields=list(PART_TYPE))
    lists = pa.LargeListArray.from_arrays(pa.array(parts.split_starts), flat)
    first = parts.split_starts[:-1]
    totals = np.add.reduceat(parts.num_bytes, first) if len(first) else np.zeros(0, np.int64)
    sources = rows["source"].cast(pa.string()).take(pa.array(first))
    return pa.table([sources, pa.array(totals), lists], schema=SCHEMA)
