"""The held-out rule: by content, about the asked share, and taking documents apart loses none."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokpipe.build.held_out import held_out_mask, take_documents
from tokpipe.tokenizer import document_hashes

batches = st.lists(st.tuples(st.lists(st.integers(0, 65_535), min_size=1, max_size=5), st.booleans()), max_size=30)


@given(batches)
def test_take_documents_equals_the_plain_loop(documents):
    ids = np.array([token for document, _ in documents for token in document], np.uint16)
    offsets = np.cumsum([0, *(len(document) for document, _ in documents)]).astype(np.int64)
    mask = np.array([chosen for _, chosen in documents], bool)
    taken, bounds = take_documents(ids, offsets, mask)
    assert bounds.dtype == np.int64 and taken.dtype == ids.dtype
    found = [taken[start:stop].tolist() for start, stop in itertools.pairwise(bounds)]
    assert found == [document for document, chosen in documents if chosen]


def test_mask_depends_on_the_text_alone():
    texts = [f"text {i}" for i in range(2000)]
    forward = held_out_mask(document_hashes(pa.array(texts, pa.large_string())), 0.1)
    backward = held_out_mask(document_hashes(pa.array(texts[::-1], pa.large_string())), 0.1)
    assert (forward == backward[::-1]).all()
    assert forward.mean() == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, [False, False, False]), (0.5, [True, True, False])])
def test_mask_compares_with_the_fraction(fraction, expected):
    hashes = np.array([0, 2**63 - 1, 2**63], np.uint64)
    assert held_out_mask(hashes, fraction).tolist() == expected
