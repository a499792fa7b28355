"""The partition that a build writes at its end."""

from __future__ import annotations

from tokpipe.build.config import BuildConfig
from tokpipe.build.store import Store
from tokpipe.shards import Manifest


def lay_out(config: BuildConfig, store: Store, manifest: Manifest) -> tuple[str, ...]:
    """Write `partition.json`; returns what the user should know about it."""
    return ()
