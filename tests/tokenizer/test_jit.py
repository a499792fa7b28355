"""Compiled code is thrown away when any source beside it changes."""

from __future__ import annotations

from pathlib import Path

import numba

from tokpipe.tokenizer import jit, kernels


def test_cached_kernels_carry_the_stamp_of_all_sources():
    names = {name for name, _, _ in kernels.encode_documents._cache._cache_file._source_stamp}
    assert names == {path.name for path in Path(jit.__file__).parent.glob("*.py")}


def test_a_machine_without_a_place_for_the_cache_still_works(monkeypatch, caplog):
    def no_place(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'f': no locator available")
        return numba.njit(**options)

    monkeypatch.setattr(jit, "_njit", no_place)
    jit._warn_once.cache_clear()

    @jit.kernel
    def f(x):
        return x + 1

    @jit.kernel
    def g(x):
        return x + 2

    assert f(2) == 3 and g(2) == 4 and caplog.text.count("NUMBA_CACHE_DIR") == 1
