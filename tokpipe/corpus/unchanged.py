"""Whether files still are what the inventory lists: asked when a task has read them, so that it never publishes a mixture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tokpipe.corpus.inventory import Inventory
from tokpipe.corpus.storage import join, local_path
from tokpipe.errors import CorpusChangedError


def check_unchanged(inventory: Inventory, paths: Sequence[str]) -> None:
    """Compare size and modification time of local files with the inventory.

    Objects behind a URL are not asked again: they are replaced whole, and a question for each would cost as much as reading it.

    Args:
        inventory: what the plan was made from.
        paths: as the inventory names them.

    Raises:
        CorpusChangedError: naming the first file that is gone or another one now.
    """
    rows = pc.index_in(pa.array(paths, pa.large_string()), value_set=inventory.table["path"])
    planned = inventory.table.select(["num_bytes", "stamp"]).take(rows)
    sizes, stamps = planned["num_bytes"].to_pylist(), planned["stamp"].to_pylist()
    for path, num_bytes, stamp in zip(paths, sizes, stamps, strict=True):
        name = join(inventory.root, path)
        local = local_path(name)
        if local is None:
            return
        try:
            status = Path(local).stat()
        except OSError as error:
            raise CorpusChangedError(f"{name}: cannot be seen any more ({error.strerror}). {_NEXT}") from error
        if (status.st_size, str(status.st_mtime_ns)) != (num_bytes, stamp):
            raise CorpusChangedError(
                f"{name}: was changed after the build had listed it ({num_bytes:,} bytes then, {status.st_size:,} now, modified "
                f"at {stamp} and {status.st_mtime_ns} ns). {_NEXT}"
            )


_NEXT = "Put it back as it was, modification time included, or begin anew with another --out."
