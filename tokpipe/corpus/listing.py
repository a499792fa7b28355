"""A corpus -> its inventory: find the files, tell what each is, name its source, and refuse early what could not work."""

from __future__ import annotations

import fnmatch
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from tokpipe.corpus.columns import check_text_column
from tokpipe.corpus.config import CorpusConfig
from tokpipe.corpus.formats import (
    FILE_DOCUMENT_LIMIT_BYTES,
    compression_of_magic,
    kind_of_name,
    source_of_path,
    too_large_for_one_document,
)
from tokpipe.corpus.huggingface import HF_PREFIX, find_saved_files, list_hub_files
from tokpipe.corpus.inventory import Inventory, inventory_table
from tokpipe.corpus.storage import FoundFile, is_utf8, join, list_files, read_head
from tokpipe.errors import CorpusError

_NUM_THREADS = 16


def read_inventory(config: CorpusConfig) -> Inventory:
    """List the input files of a corpus.

    Two kinds of files are opened: those above `config.split_bytes`, whose first bytes tell whether they can be cut, and the first
    few of every source, to look for the text column.

    Raises:
        CorpusError: if the corpus does not exist or holds nothing readable, if a source override matches no file, or if one
            `.txt` file is too large to be one document.
        MissingColumnError: if the text column is not where `config.text_column` says.
        UnreadableFileError: if a file that has to be looked into is damaged.
    """
    if config.corpus.startswith(HF_PREFIX):
        return _hub_inventory(config.corpus)
    root, found = list_files(config.corpus)
    saved = find_saved_files(root, [file.path for file in found])
    chosen: list[FoundFile] = []
    formats: list[str] = []
    compressions: list[str] = []
    ignored: list[str] = []
    for file in found:
        kind = None if _is_hidden(file.path) else kind_of_name(file.path, text_documents=config.text_documents)
        if kind is None or saved.get(file.path) is False:
            ignored.append(file.path if is_utf8(file.path) else ascii(file.path)[1:-1])
            continue
        if not is_utf8(file.path):
            raise CorpusError(
                f"{join(root, file.path)!r}: the file's name is not UTF-8. Rename it, or take it out of the corpus."
            )
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
    _check_overrides(config, chosen)
    table = inventory_table(chosen, formats, compressions, sources)
    inventory = Inventory(root, table, pa.array(ignored, pa.large_string()))
    check_text_column(inventory, config.column_path)
    return inventory


def _hub_inventory(corpus: str) -> Inventory:
    entries = list_hub_files(corpus)
    files = [entry.file for entry in entries]
    table = inventory_table(files, ["arrow"] * len(files), [""] * len(files), [entry.source for entry in entries])
    return Inventory("", table, pa.array([], pa.large_string()))


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


def _check_overrides(config: CorpusConfig, files: list[FoundFile]) -> None:
    for name, glob in config.sources:
        if not any(fnmatch.fnmatchcase(file.path, glob) for file in files):
            raise CorpusError(
                f"--source {name}={glob}: no file under {config.corpus} matches. The glob is compared with the path below the "
                "corpus; `*` also crosses `/`, and the first match wins."
            )
