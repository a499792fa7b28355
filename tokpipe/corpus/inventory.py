"""The sorted list of input files with their sizes: what every plan starts from, and what a resumed run is checked against."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from tokpipe.corpus.storage import FoundFile
from tokpipe.errors import CorpusError

SCHEMA = pa.schema(
    [
        ("path", pa.large_string()),
        ("source", pa.dictionary(pa.int32(), pa.string())),
        ("num_bytes", pa.int64()),
        ("stamp", pa.large_string()),
        ("format", pa.dictionary(pa.int32(), pa.string())),
        ("compression", pa.dictionary(pa.int32(), pa.string())),
    ]
)
_CHUNK_FILES = 65_536


@dataclass(frozen=True, slots=True)
class Inventory:
    """The input files of a corpus, about 100 bytes each."""

    root: str
    """Folder or URL that the paths are relative to; not part of the fingerprint: two copies of a corpus are equal."""
    table: pa.Table
    """Columns as in `SCHEMA`, sorted by path."""
    ignored_table: pa.LargeStringArray
    """Sorted paths of the files whose name says nothing that can be read."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Paths of the files that are passed over: unknown extension, hidden, or bookkeeping of a `datasets` folder."""
        return tuple(self.ignored_table.to_pylist())

    @property
    def num_bytes(self) -> int:
        """Size of all files together, as they lie on disk."""
        return int(pc.sum(self.table["num_bytes"]).as_py() or 0)

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources, sorted."""
        return tuple(sorted(pc.unique(self.table["source"].cast(pa.string())).to_pylist()))

    def fingerprint(self) -> str:
        """Return a hex digest over path, source, size, stamp, format and compression of every file."""
        digest = hashlib.blake2b(digest_size=16)
        for start in range(0, len(self), _CHUNK_FILES):
            rows = self.table.slice(start, _CHUNK_FILES)
            for column in rows.columns:
                text = pa.concat_arrays([chunk.cast(pa.large_string()) for chunk in column.chunks])
                # The offsets too: "ab", "c" is not "a", "bc".
                for buffer in text.buffers()[1:]:
                    digest.update(buffer or b"")
        return digest.hexdigest()

    def diff(self, other: Inventory) -> Iterator[str]:
        """Yield readable lines on what `other` (the newer one) has changed: `+` added, `-` gone, `~` changed.

        Nothing is yielded exactly if the fingerprints are equal.
        """
        mine, theirs = self._rows(), other._rows()
        for path in sorted(mine.keys() | theirs.keys()):
            old, new = mine.get(path), theirs.get(path)
            if old is None:
                yield f"+ {path}: new"
            elif new is None:
                yield f"- {path}: gone"
            elif old != new:
                what = [
                    f"{name} {before} -> {after}"
                    for name, before, after in zip(SCHEMA.names[1:], old, new, strict=True)
                    if before != after
                ]
                yield f"~ {path}: {', '.join(what)}"

    def _rows(self) -> dict[str, tuple[object, ...]]:
        columns = [self.table[name].to_pylist() for name in SCHEMA.names]
        return {str(path): rest for path, *rest_ in zip(*columns, strict=True) if (rest := tuple(rest_))}

    def write(self, path: str | PathLike[str]) -> None:
        """Write an Arrow file that `read` gives back."""
        metadata = {b"root": self.root.encode("utf-8", "surrogateescape")}
        ignored = pa.table({"ignored": self.ignored_table})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, ignored.schema) as writer:
            writer.write_table(ignored)
        metadata[b"ignored"] = sink.getvalue().to_pybytes()
        table = self.table.replace_schema_metadata(metadata)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Inventory:
        """Read what `write` wrote.

        Raises:
            CorpusError: if the file is not an inventory.
        """
        try:
            table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            metadata = table.schema.metadata or {}
            ignored = pa.ipc.open_stream(metadata[b"ignored"]).read_all()["ignored"].combine_chunks()
            root = metadata[b"root"].decode("utf-8", "surrogateescape")
        except (OSError, KeyError, pa.ArrowInvalid) as error:
            raise CorpusError(f"{path}: not an inventory that tokpipe wrote ({error}). Delete it and plan again.") from error
        return cls(root, table.replace_schema_metadata(None).cast(SCHEMA), _as_array(ignored))


def _as_array(values: pa.Array | pa.ChunkedArray) -> pa.LargeStringArray:
    return (
        pa.concat_arrays(values.chunks)
        if isinstance(values, pa.ChunkedArray) and values.num_chunks
        else pa.array(values.to_pylist(), pa.large_string())
    )


def inventory_table(files: list[FoundFile], formats: list[str], compressions: list[str], sources: list[str]) -> pa.Table:
    """Return a table as in `SCHEMA`; all lists have one entry a file, sorted by path."""
    columns = [
        pa.array([file.path for file in files], pa.large_string()),
        pa.array(sources, pa.string()).dictionary_encode(),
        pa.array([file.num_bytes for file in files], pa.int64()),
        pa.array([file.stamp for file in files], pa.large_string()),
        pa.array(formats, pa.string()).dictionary_encode(),
        pa.array(compressions, pa.string()).dictionary_encode(),
    ]
    return pa.table(columns, schema=SCHEMA)
