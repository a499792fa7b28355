"""Results on an object store: built on a local disk, uploaded whole, made part of the dataset by the receipt that names them.

An object store has no rename. What takes its place: shards go up under a key that no other attempt uses, their size and
checksum are compared with the local file, and only then the receipt is written, with if-none-match, naming the keys. A key that
no receipt names belongs to an attempt that died; nobody reads it, and `tokpipe clean` removes it. An upload that is cut short
leaves no object at all (multipart uploads become visible when they are completed).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import xxhash

from tokpipe.build.lock import hold_lock
from tokpipe.build.scratch import ScratchFolders
from tokpipe.errors import BuildError, MissingExtraError, TokpipeError
from tokpipe.urls import refuse_credentials

log = logging.getLogger(__name__)

# Keys below these folders carry the attempt's id; all others hold bytes that depend on the plan alone.
UNIQUE_FOLDERS = ("shards/", "rejects/", "build/counts/")
UPLOAD_CHUNK_BYTES = 50 << 20
READ_BYTES = 8 << 20
MD5_ETAG = re.compile(r"[0-9a-f]{32}(-\d+)?")


def open_filesystem(url: str) -> tuple[Any, str]:
    """The fsspec filesystem of a URL and the path in it. Listings are never cached: other machines write there too.

    Credentials come from the environment and the files that the protocol's library reads; they are in no message of ours.

    Raises:
        MissingExtraError: if the protocol's package is not installed.
        BuildError: if fsspec does not know the protocol.
    """
    try:
        filesystem, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise MissingExtraError(f"{url}: {error}. For s3:// that is: pip install 'tokpipe[s3]'") from error
    except ValueError as error:
        raise BuildError(
            f"{url}: {error}. Give a local folder or a URL that fsspec knows, such as s3://bucket/folder."
        ) from error
    return filesystem, str(path).rstrip("/")


class ObjectStore:
    """A prefix of an object store, as an output. Scratch and cache lie in the system's folder for temporary files."""

    def __init__(self, out: str) -> None:
        try:
            refuse_credentials(out)
        except ValueError as error:
            raise BuildError(str(error)) from error
        self.out = out.rstrip("/")
        name = hashlib.sha256(self.out.encode()).hexdigest()[:16]
        self.scratch = Path(tempfile.gettempdir()) / f"tokpipe-{name}"
        self._attempts = ScratchFolders(self.scratch / "attempts")

    @functools.cached_property
    def _remote(self) -> tuple[Any, str]:
        # Made in the process that uses it: an fsspec filesystem must not cross a fork.
        return open_filesystem(self.out)

    @property
    def filesystem(self) -> Any:
        """The fsspec filesystem."""
        return self._remote[0]

    def _ask(self, call: str, name: str, *arguments: Any, **options: Any) -> Any:
        """Call the filesystem about a name.

        Raises:
            FileNotFoundError, FileExistsError: as the filesystem does.
            BuildError: for all else, whatever the libraries behind fsspec raise.
        """
        try:
            return getattr(self.filesystem, call)(self.key(name), *arguments, **options)
        except (FileNotFoundError, FileExistsError, TokpipeError):
            raise
        except Exception as error:
            raise BuildError(
                f"{self.out}/{name}: {type(error).__name__}: {error}. Check the URL, the network and your credentials, "
                "then run the same command again: what is done stays done."
            ) from error

    def key(self, name: str) -> str:
        """The filesystem's path of a name."""
        return f"{self._remote[1]}/{name}" if name not in ("", ".") else self._remote[1]

    def exists(self, name: str) -> bool:
        """Whether an object is there."""
        return self.num_bytes(name) >= 0

    def num_bytes(self, name: str) -> int:
        """Size of an object; -1 if it is not there."""
        try:
            return int(self._ask("info", name)["size"])
        except FileNotFoundError:
            return -1

    def read(self, name: str) -> bytes:
        """A small object's bytes."""
        data: bytes = self._ask("cat_file", name)
        return data

    def write(self, name: str, data: bytes) -> None:
        """One PUT: an object is replaced whole."""
        self._ask("pipe_file", name, data)

    def put_receipt(self, name: str, data: bytes) -> bytes:
        """PUT with if-none-match: of two attempts, the second gets the first one's receipt."""
        try:
            self._ask("pipe_file", name, data, mode="create")
        except FileExistsError:
            return self.read(name)
        return data

    def names(self, folder: str) -> list[str]:
        """Names of all objects below a folder, sorted."""
        start = len(self._remote[1]) + 1
        try:
            return sorted(str(path)[start:] for path in self._ask("find", folder))
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        """Remove an object; not there is fine."""
        with contextlib.suppress(FileNotFoundError):
            self._ask("rm_file", name)

    def local(self, name: str) -> Path:
        """A copy in the cache: of an object, or of the objects directly inside a folder. Copied again if the object changed."""
        if name not in ("", ".") and self.exists(name) and self._ask("isfile", name):
            self._fetch(name)
        else:
            prefix = "" if name in ("", ".") else f"{name.rstrip('/')}/"
            listing = self._ask("ls", name, detail=True)
            inside = [prefix + str(entry["name"]).rpartition("/")[2] for entry in listing if entry["type"] == "file"]
            for file in inside:
                self._fetch(file)
            # What an earlier output under the same URL had, and this one has not.
            for path in (self.scratch / "cache" / name).iterdir():
                if path.is_file() and not path.name.startswith(".") and prefix + path.name not in inside:
                    path.unlink(missing_ok=True)
        return self.scratch / "cache" / name

    def _fetch(self, name: str) -> None:
        target = self.scratch / "cache" / name
        note = target.with_name(f".{target.name}.stamp")
        info = self._ask("info", name)
        stamp = json.dumps([info["size"], str(info.get("ETag", "")), str(info.get("LastModified", info.get("created", "")))])
        if target.exists() and note.exists() and note.read_text() == stamp:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        side = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        self._ask("get_file", name, str(side))
        side.replace(target)
        note.write_text(stamp)

    @contextlib.contextmanager
    def attempt(self, label: str) -> Iterator[UploadAttempt]:
        """A locked scratch folder on this machine; what is published from it carries the attempt's id."""
        with self._attempts.open(label) as folder:
            yield UploadAttempt(self, folder, folder.name.rpartition(".")[2])

    def dead_attempts(self, label: str = "*") -> list[str]:
        """Scratch folders on this machine whose lock nobody holds, and their locks."""
        return [str(path) for path in self._attempts.dead(label)]

    def remove_dead_attempts(self, label: str = "*") -> None:
        """Remove what processes that no longer live have left."""
        self._attempts.remove_dead(label)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other builds on this machine off. Two machines that build the same plan meet at the receipts and do no harm.

        The cache is removed at the end: word tables of a large corpus are gigabytes.
        """
        with hold_lock(self.scratch / "lock", self.out):
            try:
                yield
            finally:
                shutil.rmtree(self.scratch / "cache", ignore_errors=True)

    def free_bytes(self) -> int:
        """Nobody can tell."""
        return sys.maxsize


class UploadAttempt:
    """Publishes by upload."""

    def __init__(self, store: ObjectStore, folder: Path, attempt_id: str) -> None:
        self._store = store
        self._id = attempt_id
        self.folder = folder

    def path(self, name: str) -> Path:
        """The same relative name inside the scratch folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def publish(self, name: str, suffixes: Sequence[str] = ("",)) -> str:
        """Upload `folder/name + suffix`, check what arrived, and free the scratch space; returns the name it stands under."""
        stands = f"{name}.{self._id}" if name.startswith(UNIQUE_FOLDERS) else name
        for suffix in suffixes:
            source = self.folder / (name + suffix)
            upload(self._store.filesystem, source, self._store.key(stands + suffix), f"{self._store.out}/{stands}{suffix}")
            source.unlink()
        return stands


def upload(filesystem: Any, source: Path, key: str, shown: str) -> None:
    """Upload one file whole and compare what arrived with it.

    Raises:
        BuildError: if size or checksum differ; `shown` names the object in the message.
    """
    filesystem.put_file(str(source), key, chunksize=UPLOAD_CHUNK_BYTES)
    info = filesystem.info(key)
    num_bytes = source.stat().st_size
    if int(info["size"]) != num_bytes:
        raise BuildError(f"{shown}: arrived with {info['size']:,} bytes, expected {num_bytes:,}. Run the same command again.")
    etag = str(info.get("ETag", "")).strip('"')
    if MD5_ETAG.fullmatch(etag) and etag == expected_etag(source, multipart="-" in etag):
        return
    # No checksum, or one of another kind (server-side encryption): read it back.
    with filesystem.open(key, "rb", block_size=READ_BYTES) as remote, source.open("rb") as local:
        if _digest(remote) != _digest(local):
            raise BuildError(f"{shown}: arrived with other bytes than were sent. Run the same command again.")


def expected_etag(path: Path, *, multipart: bool) -> str:
    """S3's ETag of an unencrypted object: MD5, or for a multipart upload the MD5 of the parts' MD5s and their number."""
    parts = []
    with path.open("rb") as file:
        while chunk := file.read(UPLOAD_CHUNK_BYTES):
            parts.append(hashlib.md5(chunk, usedforsecurity=False))
    if multipart:
        digests = b"".join(part.digest() for part in parts)
        return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"
    if len(parts) == 1:
        return parts[0].hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _digest(file: Any) -> str:
    digest = xxhash.xxh3_128()
    while chunk := file.read(READ_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
