"""The probes agree with what whole models do."""

from __future__ import annotations

import pytest

from tokpipe.tokenizer import probe
from tokpipe.tokenizer.vocabulary import NORMAL


def test_probes_answer_yes_or_no_and_are_asked_once():
    for ask in (probe.negative_zero_is_lower, probe.unused_characters_are_unknown):
        assert ask() is ask() and isinstance(ask(), bool)


@pytest.mark.parametrize("text, pieces", [("ab", ["ab"]), ("ba", ["b", "a"]), ("aab", ["a", "ab"]), (" ", ["<unk>"])])
def test_probe_models_are_bpe_without_prefix(text, pieces):
    assert probe._encode(text, {"a": (-5.0, NORMAL), "b": (-5.0, NORMAL), "ab": (-1.0, NORMAL)}) == pieces
