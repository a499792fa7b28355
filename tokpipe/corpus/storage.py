"""Files under a root, local or behind any fsspec URL: listed with a change stamp, opened for reading."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import fsspec
import pyarrow as pa

from tokpipe.errors import CorpusError, MissingExtraError, UnreadableFileError

HEAD_BYTES = 64


class FoundFile(NamedTuple):
    """One file of a listing."""

    path: str
    """Relative to the root, with `/`."""
    num_bytes: int
    stamp: str
    """Changes when the content does: the etag, or the modification time in nanoseconds."""


def local_path(location: str) -> str | None:
    """Return the path of a local location (plain or `file://`), or `None` for a URL of another kind."""
    if "://" not in location:
        return location
    return location.removeprefix("file://") if location.startswith("file://") else None


def _filesystem(url: str) -> tuple[Any, str]:
    """Return the fsspec filesystem of a URL (fsspec keeps one object a store) and the path in it."""
    filesystem, path = fsspec.core.url_to_fs(url)
    return filesystem, str(path).rstrip("/")


def is_utf8(name: str) -> bool:
    """Return whether a name can be written down; Python holds the other bytes of a name on disk as lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def join(root: str, path: str) -> str:
    """Return the full name of a file, for opening and for messages; an absolute `path` stands for itself."""
    if not root or path.startswith("/") or "://" in path:
        return path
    return f"{root.rstrip('/')}/{path}"


def open_file(name: str, **remote: Any) -> IO[bytes]:
    """Open one file (a full name, see `join`) for reading, seekable and unbuffered where the storage allows.

    `remote` goes to fsspec's `open`. Without it the storage's own large blocks are read ahead (50 MB from S3).

    Raises:
        UnreadableFileError: if it is gone or may not be read.
    """
    path = local_path(name)
    try:
        if path is not None:
            return Path(path).open("rb", buffering=0)
        filesystem, inner = _filesystem(name)
        opened: IO[bytes] = filesystem.open(inner, "rb", **remote)
        return opened
    except Exception as error:  # the libraries behind fsspec raise errors of their own
        raise UnreadableFileError(f"{name}: cannot be opened ({error}). Check that it exists and may be read.") from error


def open_arrow(name: str) -> Any:
    """Open one file for Arrow's own readers, without Python in between if it is local.

    Raises:
        UnreadableFileError: if it is gone or may not be read.
    """
    path = local_path(name)
    if path is None:
        return pa.PythonFile(open_file(name), mode="r")
    try:
        return pa.OSFile(path)
    except OSError as error:
        raise UnreadableFileError(f"{name}: cannot be opened ({error}). Check that it exists and may be read.") from error


def unreadable(name: str, kind: str, error: Exception) -> str:
    """Return the message for a file that Arrow refuses."""
    return f"{name}: cannot be read as {kind} ({error}). Fetch or write it again, or take it out of the corpus."


def read_head(name: str, num_bytes: int = HEAD_BYTES) -> bytes:
    """Return the first bytes of a file, and ask a remote storage for no more than those."""
    with open_file(name, cache_type="none") as file:
        return file.read(num_bytes)


def list_files(location: str) -> tuple[str, list[FoundFile]]:
    """Return (root, files): everything under a folder, sorted by path; a single file's root is the folder it lies in.

    Symbolic links are followed; a link back to a folder above it is not entered again.

    Raises:
        CorpusError: if there is no such file or folder.
    """
    path = local_path(location)
    if path is not None:
        return _list_local(path)
    return _list_url(location)


def _list_local(path: str) -> tuple[str, list[FoundFile]]:
    full = Path(path).expanduser()
    if not full.exists():
        raise CorpusError(f"{path}: no such file or folder. Give --corpus a folder of text, one file, a URL or hf:NAME.")
    full = full.absolute()
    if full.is_file():
        entry = full.stat()
        return str(full.parent), [FoundFile(full.name, entry.st_size, str(entry.st_mtime_ns))]
    status = full.stat()
    found = list(_walk(str(full), "", frozenset({(status.st_dev, status.st_ino)})))
    return str(full), sorted(found)


def _walk(folder: str, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[FoundFile]:
    """Yield the files under one folder; `above` are the folders that led here, by device and inode."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                status = entry.stat()
                if stat.S_ISDIR(status.st_mode):
                    key = (status.st_dev, status.st_ino)
                    if key not in above:
                        yield from _walk(entry.path, f"{prefix}{entry.name}/", above | {key})
                elif stat.S_ISREG(status.st_mode):
                    yield FoundFile(prefix + entry.name, status.st_size, str(status.st_mtime_ns))
    except UnreadableFileError:  # an OSError, too: from a folder further down, which it names
        raise
    except OSError as error:
        raise UnreadableFileError(
            f"{error.filename or folder}: cannot be listed ({error.strerror}). Mend it, or take it out of the corpus."
        ) from error


def _list_url(location: str) -> tuple[str, list[FoundFile]]:
    try:
        filesystem, inner = _filesystem(location)
        listing = filesystem.find(inner, detail=True)
    except ImportError as error:
        raise MissingExtraError(f"{location}: {error}. For s3:// that is: pip install 'tokpipe[s3]'") from error
    except Exception as error:  # the libraries behind fsspec raise errors of their own
        raise CorpusError(
            f"{location}: cannot be listed ({type(error).__name__}: {error}). Check the URL, the network and your credentials."
        ) from error
    if not listing:
        raise CorpusError(f"{location}: no such file or folder, or nothing in it.")
    if list(listing) == [inner]:
        root, _, _ = location.rpartition("/")
        base = inner.rpartition("/")[0]
    else:
        root, base = location.rstrip("/"), inner
    files = [
        FoundFile(name[len(base) :].lstrip("/"), int(info["size"]), _stamp(info))
        for name, info in listing.items()
        if info["size"] is not None
    ]
    return root, sorted(files)


def _stamp(info: dict[str, Any]) -> str:
    """Return what a store tells about a file's version: its etag where there is one."""
    for key in ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "mtime", "created"):
        if info.get(key):
            return str(info[key]).strip('"')
    return ""
