"""A dataset's files for reading: in a folder on this machine, or behind any fsspec URL (`s3://bucket/data`).

Only the manifest and `verify` read through this. Training reads local files, which it can map; `tokpipe pull` makes them local.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Protocol, cast

from tokpipe.errors import DatasetError, MissingExtraError
from tokpipe.urls import refuse_credentials

REMOTE_BLOCK_BYTES = 16 << 20
"""Read at once from an object store, whose every request costs tens of milliseconds."""


class DatasetFiles(Protocol):
    """Files by their names relative to the dataset folder, with forward slashes."""

    def __str__(self) -> str:
        """The folder as a person would name it."""
        ...

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None if there is no such file."""
        ...

    def open(self, name: str) -> BinaryIO:
        """A file for reading, with `seek` and `readinto`."""
        ...

    def names(self, place: str) -> list[str]:
        """Names of the files directly in a folder, sorted; none if it is not there."""
        ...

    def local_copy(self, name: str) -> AbstractContextManager[Path]:
        """A path on this machine that holds the file's bytes for as long as the context lasts."""
        ...


class LocalFiles:
    """Files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def size(self, name: str) -> int | None:
        """Bytes of a file, or None."""
        path = self.folder / name
        return path.stat().st_size if path.is_file() else None

    def open(self, name: str) -> BinaryIO:
        """The file, unbuffered: readers bring their own blocks."""
        return cast(BinaryIO, (self.folder / name).open("rb", buffering=0))

    def names(self, place: str) -> list[str]:
        """Names of the files directly in a folder."""
        return sorted(str(path.relative_to(self.folder)) for path in (self.folder / place).glob("*") if path.is_file())

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        """The file itself."""
        yield self.folder / name


class RemoteFiles:
    """Files behind an fsspec URL. Listings are never cached: other machines write there too."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            refuse_credentials(url)
        except ValueError as error:
            raise DatasetError(str(error)) from error
        # Imported here: opening a local dataset must not pay for it.
        import fsspec

        try:
            filesystem, path = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        except ImportError as error:
            raise MissingExtraError(f"{url}: {error}. For s3:// install the extra: pip install 'tokpipe[s3]'.") from error
        except ValueError as error:
            raise DatasetError(
                f"{url}: {error}. Give a local folder or a URL that fsspec knows, such as s3://bucket/data."
            ) from error
        self._filesystem: Any = filesystem
        self._path = str(path).rstrip("/")

    def __str__(self) -> str:
        return self.url

    def size(self, name: str) -> int | None:
        """Bytes of an object, or None."""
        try:
            with self._located(name):
                info = self._filesystem.info(f"{self._path}/{name}")
        except FileNotFoundError:
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def open(self, name: str) -> BinaryIO:
        """The object, read in large blocks."""
        with self._located(name):
            return cast(BinaryIO, self._filesystem.open(f"{self._path}/{name}", "rb", block_size=REMOTE_BLOCK_BYTES))

    def names(self, place: str) -> list[str]:
        """Names of the objects directly under a prefix."""
        try:
            with self._located(place):
                listing = self._filesystem.ls(f"{self._path}/{place}", detail=True)
        except FileNotFoundError:
            return []
        return sorted(info["name"].removeprefix(f"{self._path}/") for info in listing if info["type"] == "file")

    @contextmanager
    def _located(self, name: str) -> Iterator[None]:
        """Say where it happened; the libraries behind fsspec raise errors of their own, without the name of the file.

        Raises:
            FileNotFoundError: as it is.
            DatasetError: for everything else, such as no network or no credentials.
        """
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:
            raise DatasetError(
                f"{self.url}/{name}: cannot be read: {type(error).__name__}: {error}. "
                "Check the URL, the network and your credentials."
            ) from error

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        """A download into a temporary folder; for small files."""
        with TemporaryDirectory(prefix="tokpipe-") as folder, self.open(name) as file:
            path = Path(folder) / name.rpartition("/")[2]
            path.write_bytes(file.read())
            yield path


def open_files(folder: str | os.PathLike[str]) -> DatasetFiles:
    """The files of a dataset: a URL if the text has `://` in it, else a local folder.

    Raises:
        DatasetError: if fsspec does not know the URL's protocol.
        MissingExtraError: if the protocol needs a package that is not installed.
    """
    text = os.fspath(folder)
    return RemoteFiles(text) if "://" in text else LocalFiles(Path(text))


def read_small(files: DatasetFiles, name: str) -> bytes:
    """A small file's bytes."""
    with files.open(name) as file:
        return file.read()
