"""Hugging Face `datasets`: folders saved on disk, and `hf:NAME[:CONFIG[:SPLIT]]`. Either way the text lies in Arrow streams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tokpipe.corpus.storage import FoundFile, join, open_file
from tokpipe.errors import CorpusError, UnreadableFileError

HF_PREFIX = "hf:"
_BOOKKEEPING = ("dataset_info.json", "dataset_dict.json", "state.json")


class HubFile(NamedTuple):
    """One Arrow file of a named dataset."""

    file: FoundFile
    source: str


def find_saved_files(root: str, paths: list[str]) -> dict[str, bool]:
    """Return what `datasets` folders say about their files: True for data, False for bookkeeping and stale caches.

    A saved folder holds `state.json`, which names its Arrow files; others beside them are caches of `map` and must not be read.
    Files of other folders are not in the result.

    Raises:
        UnreadableFileError: if a `state.json` cannot be understood, or names a file that is not there.
    """
    known = set(paths)
    verdicts: dict[str, bool] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        prefix = f"{folder}/" if folder else ""
        if name == "dataset_dict.json":
            verdicts[path] = False
        if name != "state.json" or f"{prefix}dataset_info.json" not in known:
            continue
        data = {prefix + filename for filename in _read_state(join(root, path))}
        missing = sorted(data - known)
        if missing:
            raise UnreadableFileError(f"{join(root, path)}: names {missing[0]}, which is not there. Save the dataset again.")
        verdicts.update(dict.fromkeys(data, True))
        verdicts.update({prefix + other: False for other in _BOOKKEEPING})
        stale = (other for other in paths if other.startswith(prefix) and "/" not in other[len(prefix) :])
        verdicts.update({other: False for other in stale if other.endswith(".arrow") and other not in data})
    return verdicts


def _read_state(name: str) -> list[str]:
    try:
        with open_file(name) as file:
            state = json.loads(file.read())
        return [str(entry["filename"]) for entry in state["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableFileError(f"{name}: not the state of a saved `datasets` folder ({error!r}). Save it again.") from error


def list_hub_files(corpus: str) -> list[HubFile]:
    """Prepare `hf:NAME[:CONFIG[:SPLIT]]` in the `datasets` cache and list its Arrow files, sorted by path.

    The source is the last part of NAME, with CONFIG behind it if one is given.

    Raises:
        CorpusError: if `datasets` cannot load it.
    """
    name, config, split = (*corpus.removeprefix(HF_PREFIX).split(":"), "", "")[:3]
    if "[" in split:
        # The cache holds the whole split; a slice exists in memory alone and would be ignored in silence.
        raise CorpusError(f"{corpus}: a slice of a split cannot be read. Give the split's name alone, or save the slice to disk.")
    import datasets  # costs a second, and only this kind of corpus needs it

    try:
        loaded = datasets.load_dataset(name, config or None, split=split or None)
    except Exception as error:
        # load_dataset raises anything from ConnectionError to its own classes; each is the user's to see, none is ours to hide.
        raise CorpusError(f"{corpus}: `datasets` cannot load it ({type(error).__name__}: {error}).") from error
    parts = list(loaded.values()) if isinstance(loaded, dict) else [loaded]
    source = name.rstrip("/").rpartition("/")[2] + (f"-{config}" if config else "")
    files = []
    for part in parts:
        for cached in part.cache_files:
            status = Path(cached["filename"]).stat()
            found = FoundFile(str(cached["filename"]), status.st_size, str(status.st_mtime_ns))
            files.append(HubFile(found, source))
    if not files:
        raise CorpusError(
            f"{corpus}: `datasets` holds it in memory, not in files. Save it with save_to_disk and name that folder."
        )
    return sorted(files)
