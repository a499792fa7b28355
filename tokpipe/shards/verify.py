"""Verify a dataset: re-read everything and hold it against the manifest and docs/format.md.

`verify_shard` is one task (a folder, an entry, the manifest), so an engine can spread shards over machines; `verify_folder`
looks at what lies beside them; `verify_dataset` does both, here and now. None stops at the first problem.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tokpipe.errors import TokenizerError, VerificationError
from tokpipe.shards.folder import DatasetFiles, open_files, read_small
from tokpipe.shards.format import BIN_SUFFIX, IDX_SUFFIX, REDO, SIDE_SUFFIX
from tokpipe.shards.manifest import Manifest, ShardEntry, read_manifest
from tokpipe.shards.scan import OnBytes, Problem, hash_file, scan_index, scan_tokens

CARD_NAME = "card.json"
_SHOWN_PROBLEMS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was read and what is wrong with it."""

    dataset_id: str
    num_shards: int
    num_documents: int
    num_tokens: int
    num_bytes: int
    """Bytes of all `.bin` and `.idx` files, as the manifest says."""
    problems: tuple[Problem, ...]
    leftovers: tuple[str, ...]
    """Unfinished files (`*.part`) of attempts that died: harmless, and `tokpipe clean` removes them."""

    @classmethod
    def of(
        cls, manifest: Manifest, entries: Sequence[ShardEntry], problems: Iterable[Problem], leftovers: Iterable[str]
    ) -> VerifyReport:
        """The report on those shards of a dataset that were looked at."""
        return cls(
            dataset_id=manifest.dataset_id,
            num_shards=len(entries),
            num_documents=sum(entry.num_documents for entry in entries),
            num_tokens=sum(entry.num_tokens for entry in entries),
            num_bytes=sum(entry.bin_bytes + entry.idx_bytes for entry in entries),
            problems=tuple(problems),
            leftovers=tuple(leftovers),
        )

    @property
    def ok(self) -> bool:
        """Whether every promise is kept."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self) | {"ok": self.ok, "problems": [asdict(problem) for problem in self.problems]}

    def summary(self) -> str:
        """The report in a few lines."""
        verdict = "every byte was re-read and every promise is kept" if self.ok else self._count()
        text = (
            f"dataset {self.dataset_id}: {self.num_shards:,} shards, {self.num_documents:,} documents, "
            f"{self.num_tokens:,} tokens, {self.num_bytes:,} bytes: {verdict}."
        )
        if self.leftovers:
            text += f"\n{len(self.leftovers)} unfinished files (*{SIDE_SUFFIX}) of dead attempts; `tokpipe clean` removes them."
        return text

    def _count(self) -> str:
        return "1 problem" if len(self.problems) == 1 else f"{len(self.problems):,} problems"

    def raise_if_bad(self) -> None:
        """Turn problems into an error.

        Raises:
            VerificationError: naming the first problems, if there are any.
        """
        if self.problems:
            shown = "".join(f"\n  {problem.message}" for problem in self.problems[:_SHOWN_PROBLEMS])
            more = len(self.problems) - _SHOWN_PROBLEMS
            rest = f"\n  ... and {more:,} more (all of them with --json)" if more > 0 else ""
            raise VerificationError(f"{self._count()} in dataset {self.dataset_id}:{shown}{rest}")


def verify_dataset(
    folder: str | os.PathLike[str],
    *,
    only: Collection[str] | None = None,
    on_progress: OnBytes | None = None,
    fingerprint_of: Callable[[Path], str] | None = None,
) -> VerifyReport:
    """Re-read a whole dataset in bounded memory.

    Args:
        folder: the dataset folder, or its URL.
        only: names of the shards that are meant to be there, for a staged share; None for all.
        on_progress: called with the number of bytes read since the last call; they add up to `num_bytes` if all files are whole.
        fingerprint_of: computes a tokenizer model's fingerprint from its path, so that the model itself is checked too.

    Raises:
        ManifestError: if the manifest is missing or contradicts itself: then there is nothing to hold the files against.
    """
    manifest = read_manifest(folder)
    problems, leftovers = verify_folder(folder, manifest, fingerprint_of=fingerprint_of)
    entries = entries_of(manifest, only)
    for entry in entries:
        problems += verify_shard(folder, entry, manifest, on_bytes=on_progress)
    return VerifyReport.of(manifest, entries, problems, leftovers)


def entries_of(manifest: Manifest, only: Collection[str] | None) -> tuple[ShardEntry, ...]:
    """The manifest's shards, or those with the names in `only`, in the dataset's order."""
    return tuple(entry for entry in manifest.shards if only is None or entry.name in only)


def verify_folder(
    folder: str | os.PathLike[str], manifest: Manifest, *, fingerprint_of: Callable[[Path], str] | None = None
) -> tuple[list[Problem], list[str]]:
    """Check what lies around the shards: files too many, and the tokenizer. Returns problems and leftover `.part` files."""
    files = open_files(folder)
    named = {name for entry in manifest.shards for name in (entry.name + BIN_SUFFIX, entry.name + IDX_SUFFIX)}
    places = sorted({"shards", *(entry.name.rpartition("/")[0] for entry in manifest.shards)})
    found = [name for place in places for name in files.names(place)]
    problems = [
        Problem(
            path=name,
            kind="extra",
            message=f"{name}: lies among the shards but is not in the manifest. `tokpipe clean` removes what no receipt names.",
        )
        for name in found
        if name not in named and name.endswith((BIN_SUFFIX, IDX_SUFFIX))
    ]
    leftovers = [name for name in found if name.endswith(SIDE_SUFFIX)]
    return problems + _verify_tokenizer(files, manifest, fingerprint_of), leftovers


def _verify_tokenizer(files: DatasetFiles, manifest: Manifest, fingerprint_of: Callable[[Path], str] | None) -> list[Problem]:
    path, expected = manifest.tokenizer.path, manifest.tokenizer.fingerprint
    if files.size(path) is None:
        message = f"{path}: the tokenizer is missing; without it the ids are only numbers. Copy it back."
        return [Problem(path=path, kind="missing", message=message)]
    prints = {}
    if fingerprint_of is not None:
        try:
            with files.local_copy(path) as model:
                prints[path] = fingerprint_of(model)
        except (TokenizerError, OSError) as error:
            message = f"{path}: the tokenizer cannot be read: {error}. Copy the right one back."
            return [Problem(path=path, kind="tokenizer", message=message)]
    card = f"{path.rpartition('/')[0]}/{CARD_NAME}"
    if files.size(card) is not None:
        prints[card] = _card_fingerprint(read_small(files, card))
    return [
        Problem(
            path=name,
            kind="tokenizer",
            message=f"{name}: is of another tokenizer: fingerprint {found}, the shards were written with {expected}. "
            "Copy the right one back.",
        )
        for name, found in prints.items()
        if found != expected
    ]


def _card_fingerprint(card: bytes) -> str:
    try:
        return str(json.loads(card)["fingerprint"])
    except (ValueError, KeyError, TypeError):
        return "(unreadable)"


def verify_shard(
    folder: str | os.PathLike[str], entry: ShardEntry, manifest: Manifest, *, on_bytes: OnBytes | None = None
) -> list[Problem]:
    """Re-read one shard in bounded memory: sizes, hashes, index, ids, one `</s>` per document and at its end.

    Args:
        folder: the dataset folder, or its URL.
        entry: the shard, one of `manifest.shards`.
        manifest: for dtype, vocabulary and `</s>`, and to tell a swapped file from a damaged one.
        on_bytes: called with the number of bytes read since the last call.

    Returns:
        What is wrong, each with what was expected, what was found and what to do; empty if all is well.
    """
    files = open_files(folder)
    report = on_bytes or (lambda _: None)
    if all(files.size(entry.name + suffix) is None for suffix in (BIN_SUFFIX, IDX_SUFFIX)):
        message = f"{entry.name}: the shard is missing, both its .bin and its .idx. {REDO}"
        return [Problem(path=entry.name, kind="missing", message=message)]
    problems = _verify_half(files, IDX_SUFFIX, entry, manifest, lambda: scan_index(files, entry, manifest, report))
    # A damaged index cannot say where documents end; the ids are still held against the vocabulary.
    sound = not problems
    return problems + _verify_half(
        files, BIN_SUFFIX, entry, manifest, lambda: scan_tokens(files, entry, manifest, report, with_index=sound)
    )


def _verify_half(
    files: DatasetFiles, suffix: str, entry: ShardEntry, manifest: Manifest, scan: Callable[[], tuple[list[Problem], str]]
) -> list[Problem]:
    """Check one file: its size first, then what `scan` finds in it, then its hash."""
    name = entry.name + suffix
    try:
        problems = _check_size(files, suffix, entry, manifest)
        if problems:
            return problems
        found, digest = scan()
    except OSError as error:
        # A disk that fails to read is what this command is there to find, and the other files are still worth a look.
        return [Problem(path=name, kind="unreadable", message=f"{name}: cannot be read: {error}. {REDO}")]
    return _check_hash(suffix, digest, entry, manifest, found)


def _check_size(files: DatasetFiles, suffix: str, entry: ShardEntry, manifest: Manifest) -> list[Problem]:
    name, expected = entry.name + suffix, _promise(entry, suffix)[0]
    found = files.size(name)
    if found is None:
        message = f"{name}: the file is missing while its other half is there. {REDO}"
        return [Problem(path=name, kind="missing", message=message)]
    if found == expected:
        return []
    # Reading a file of the wrong size is worth it only if another shard's file has that size: they may be swapped.
    if any(_promise(other, suffix)[0] == found for other in manifest.shards):
        swapped = _swap_problem(suffix, hash_file(files, name), entry, manifest)
        if swapped:
            return [swapped]
    kind = "is cut short" if found < expected else "is too long"
    return [Problem(path=name, kind="size", message=f"{name}: {kind}: {found:,} bytes, expected {expected:,}. {REDO}")]


def _check_hash(suffix: str, digest: str, entry: ShardEntry, manifest: Manifest, found: list[Problem]) -> list[Problem]:
    """Add a hash that differs to what the contents showed; a swapped file's contents need no words of their own."""
    name, expected = entry.name + suffix, _promise(entry, suffix)[1]
    if digest == expected:
        return found
    swapped = _swap_problem(suffix, digest, entry, manifest)
    if swapped:
        return [swapped]
    message = f"{name}: its bytes were altered: xxh3-128 {digest}, the manifest says {expected}, same size. {REDO}"
    return [Problem(path=name, kind="hash", message=message), *found]


def _swap_problem(suffix: str, digest: str, entry: ShardEntry, manifest: Manifest) -> Problem | None:
    owners = [other.name for other in manifest.shards if _promise(other, suffix)[1] == digest]
    if not owners:
        return None
    message = (
        f"{entry.name}{suffix}: holds the bytes of {owners[0]}{suffix}: the files were swapped or copied over each other. "
        "Rename them back."
    )
    return Problem(path=entry.name + suffix, kind="swapped", message=message)


def _promise(entry: ShardEntry, suffix: str) -> tuple[int, str]:
    """Size and hash that the manifest gives for one half of a shard."""
    return (entry.bin_bytes, entry.bin_xxh3) if suffix == BIN_SUFFIX else (entry.idx_bytes, entry.idx_xxh3)
