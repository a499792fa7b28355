"""The sorted list of input files with their sizes: what every plan starts from, and what a resumed run is checked against."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from tokpipe.corpus.config import CorpusConfig
from tokpipe.corpus.formats import compression_of_magic, kind_of_name, source_of_path
from tokpipe.corpus.huggingface import HF_PREFIX, find_saved_files, list_hub_files
from tokpipe.corpus.storage import FoundFile, join, list_files, read_head
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
FILE_DOCUMENT_LIMIT_BYTES = 1 << 30
_NUM_THREADS = 16
_CHUNK_FILES = 65_536


@dataclass(frozen=True, slots=True)
class Inventory:
    """The input files of a corpus, about 100 bytes each."""

    root: str
    """Folder or URL that the paths are relative to; not part of the fingerprint, so a corpus may be moved."""
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
        for batch in self.table.to_batches(max_chunksize=_CHUNK_FILES):
            rows = batch.to_pydict()
            for row in zip(*(rows[name] for name in SCHEMA.names), strict=True):
                digest.update(repr(row).encode("utf-8", "surrogatepass"))
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


def read_inventory(config: CorpusConfig) -> Inventory:
    """List the input files of a corpus.

    Only files above `config.split_bytes` are opened (their first bytes tell whether they can be cut).

    Raises:
        CorpusError: if the corpus does not exist or holds nothing readable, if a source override matches no file, or if one
            `.txt` file is too large to be one document.
    """
    if config.corpus.startswith(HF_PREFIX):
        files = list_hub_files(config.corpus)
        root, sources = "", [entry.source for entry in files]
        table = _table([entry.file for entry in files], ["arrow"] * len(files), [""] * len(files), sources)
        return Inventory(root, table, pa.array([], pa.large_string()))
    root, found = list_files(config.corpus)
    saved = find_saved_files(root, [file.path for file in found])
    chosen: list[FoundFile] = []
    formats: list[str] = []
    compressions: list[str] = []
    ignored: list[str] = []
    for file in found:
        kind = None if _is_hidden(file.path) else kind_of_name(file.path, text_documents=config.text_documents)
        if kind is None or saved.get(file.path) is False:
            ignored.append(file.path)
            continue
        chosen.append(file)
        formats.append(kind.format)
        compressions.append(kind.compression)
    if not chosen:
        raise CorpusError(
            f"{config.corpus}: none of its {len(found):,} files can be read. Expected .txt, .jsonl, .ndjson, .json, .csv, .tsv "
            f"(each also .gz, .zst, .bz2, .xz), .parquet or .arrow; found e.g. {', '.join(ignored[:3]) or 'nothing'}."
        )
    _sniff_large(root, chosen, compressions, config.split_bytes)
    _check_document_sizes(root, chosen, formats, compressions)
    sources = [source_of_path(file.path, config.sources) for file in chosen]
    _check_overrides(config, sources)
    return Inventory(root, _table(chosen, formats, compressions, sources), pa.array(ignored, pa.large_string()))


def _is_hidden(path: str) -> bool:
    return path.startswith(".") or "/." in path


def _sniff_large(root: str, files: list[FoundFile], compressions: list[str], split_bytes: int) -> None:
    """Replace what the names of large files say about their compression by what their first bytes say."""
    large = [index for index, file in enumerate(files) if file.num_bytes > split_bytes]
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        heads = pool.map(lambda index: read_head(join(root, files[index].path)), large)
        for index, head in zip(large, heads, strict=True):
            compressions[index] = compression_of_magic(head)


def _check_document_sizes(root: str, files: list[FoundFile], formats: list[str], compressions: list[str]) -> None:
    for file, kind, compression in zip(files, formats, compressions, strict=True):
        if kind == "text" and not compression and file.num_bytes > FILE_DOCUMENT_LIMIT_BYTES:
            raise CorpusError(too_large_for_one_document(join(root, file.path), file.num_bytes))


def too_large_for_one_document(name: str, num_bytes: int) -> str:
    """Return the message for a `.txt` file that is more than one document can be."""
    return (
        f"{name}: {num_bytes:,} bytes or more are too many for one document (at most {FILE_DOCUMENT_LIMIT_BYTES:,}). Choose "
        "`--text-documents line` or `--text-documents blank-line`, or split the file."
    )


def _check_overrides(config: CorpusConfig, sources: list[str]) -> None:
    present = set(sources)
    for name, glob in config.sources:
        if name not in present:
            raise CorpusError(
                f"--source {name}={glob}: no file under {config.corpus} matches. The glob is compared with the path below the "
                "corpus; `*` also crosses `/`, and the first match wins."
            )


def _table(files: list[FoundFile], formats: list[str], compressions: list[str], sources: list[str]) -> pa.Table:
    columns = [
        pa.array([file.path for file in files], pa.large_string()),
        pa.array(sources, pa.string()).dictionary_encode(),
        pa.array([file.num_bytes for file in files], pa.int64()),
        pa.array([file.stamp for file in files], pa.large_string()),
        pa.array(formats, pa.string()).dictionary_encode(),
        pa.array(compressions, pa.string()).dictionary_encode(),
    ]
    return pa.table(columns, schema=SCHEMA)
