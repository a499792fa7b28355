"""Compiled code is thrown away when any source beside it changes."""

from __future__ import annotations

from pathlib import Path

from tokpipe.tokenizer import jit, kernels


def test_cached_kernels_carry_the_stamp_of_all_sources():
    names = {name for name, _, _ in kernels.encode_documents._cache._cache_file._source_stamp}
    assert names == {path.name for path in Path(jit.__file__).parent.glob("*.py")}
