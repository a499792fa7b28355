"""Documents need an end; a model without one is refused before anything is planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tokpipe.build import plan_build
from tokpipe.build.ends import document_ends
from tokpipe.errors import TokenizerError


class Headless:
    name, vocab_size, eos_id, bos_id = "m.model", 100, None, None


def test_documents_need_an_end(given):
    with pytest.raises(TokenizerError, match="--eos-id N"):
        document_ends(Headless(), given)
    with pytest.raises(TokenizerError, match="--eos-id 100 is not one of its 100 ids"):
        document_ends(Headless(), replace(given, eos_id=100))
    with pytest.raises(TokenizerError, match="has no <s>"):
        document_ends(Headless(), replace(given, eos_id=7, prepend_bos=True))
    assert document_ends(Headless(), replace(given, eos_id=7)).eos_id == 7


def test_an_end_that_cannot_be_is_refused_by_the_plan(given):
    with pytest.raises(TokenizerError, match="--eos-id 9999 is not one of"):
        plan_build(replace(given, eos_id=9999))
    assert not (Path(given.out) / "build" / "plan.json").exists()
