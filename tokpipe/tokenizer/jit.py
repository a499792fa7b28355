"""How kernels are compiled: once per machine, without the interpreter lock, without counting references."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit as _typed_njit

logger = logging.getLogger(__name__)

# `_nrt` is not among the options that Numba declares.
_njit: Any = _typed_njit

# Numba keys its disk cache on the one file that holds a kernel, but a kernel is compiled with the parts it calls in the files
# beside it: without this stamp, a change in one of those would leave old machine code in use.
_SOURCES = tuple((path.name, path.stat().st_mtime, path.stat().st_size) for path in sorted(Path(__file__).parent.glob("*.py")))

# `_nrt=False`: kernels own no memory, so Numba need not count references to the arrays inside named tuples. Counting them took
# six times as long as all the rest (43 against 280 MB/s). A kernel that allocates fails to compile.
kernel_part: Any = _njit(forceinline=True, _nrt=False)
"""Decorator of a small function that is compiled into the kernels that call it."""


@cache
def _warn_once() -> None:
    logger.warning(
        "Kernels are compiled anew in every process (15 s), for neither %s nor ~/.cache can be written: set NUMBA_CACHE_DIR.",
        Path(__file__).parent,
    )


def kernel(function: Callable[..., Any]) -> Any:
    """Decorator of a function that Python calls: compiled on first use and kept on disk, beside the source or under ~/.cache."""
    try:
        compiled = _njit(cache=True, nogil=True, _nrt=False)(function)
    except RuntimeError:  # neither place can be written to
        _warn_once()
        return _njit(nogil=True, _nrt=False)(function)
    compiled._cache._cache_file._source_stamp = _SOURCES
    return compiled
