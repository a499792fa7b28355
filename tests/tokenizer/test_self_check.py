"""The self-check finds a wrong id, says where, and chooses the same documents every time."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from tokpipe.errors import SelfCheckError
from tokpipe.tokenizer import Tokenizer, document_hashes, self_check_rows


@pytest.fixture(scope="module")
def encoded(small_model, text_maker_session):
    tokenizer = Tokenizer.load(small_model)
    texts = pa.array(text_maker_session("hi", 50), pa.large_string())
    return tokenizer, texts, *tokenizer.encode_batch(texts, bos_id=1, eos_id=2)


def test_right_ids_pass_and_count_their_bytes(encoded):
    tokenizer, texts, ids, offsets = encoded
    checked = tokenizer.self_check(texts, ids, offsets, np.array([0, 7]), bos_id=1, eos_id=2)
    assert checked == len(texts[0].as_py().encode()) + len(texts[7].as_py().encode())


@pytest.mark.parametrize("wrong", ["changed", "missing", "end mark"])
def test_wrong_ids_fail_with_place_and_both_encodings(encoded, wrong):
    tokenizer, texts, ids, offsets = encoded
    ids, offsets = ids.copy(), offsets.copy()
    if wrong == "changed":
        ids[offsets[3] + 5] = 9
    elif wrong == "missing":
        offsets[4:] -= 1
    with pytest.raises(SelfCheckError, match=r"hi\.jsonl, row 3: the ids differ.*\n  SentencePiece: .*\n  tokpipe: ") as caught:
        rows, eos_id = np.array([0, 3] if wrong != "end mark" else [3]), 3 if wrong == "end mark" else 2
        tokenizer.self_check(texts, ids, offsets, rows, bos_id=1, eos_id=eos_id, place=lambda row: f"hi.jsonl, row {row}")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_ids_outside_the_vocabulary_are_shown(encoded):
    tokenizer, texts, ids, offsets = encoded
    ids = ids.copy()
    ids[1] = 60_000
    with pytest.raises(SelfCheckError, match=r"60000:\(no piece\)"):
        tokenizer.self_check(texts, ids, offsets, np.array([0]), bos_id=1, eos_id=2)


def test_sample_depends_on_content_alone_and_has_about_its_size():
    texts = pa.array([f"document {i}" for i in range(20_000)], pa.large_string())
    hashes = document_hashes(texts)
    rows = self_check_rows(hashes, 0.01)
    assert 150 < len(rows) < 250
    assert [r + 5000 for r in self_check_rows(hashes[5000:], 0.01)] == [r for r in rows if r >= 5000]
    assert len(self_check_rows(hashes, 0.0)) == 0 and len(self_check_rows(hashes, 1.0)) == 20_000


def test_sample_is_independent_of_held_out_documents():
    hashes = document_hashes(pa.array([f"text {i}" for i in range(100_000)], pa.large_string()))
    held_out = hashes < np.uint64(2**64 // 10)
    assert 0.05 < held_out[self_check_rows(hashes, 0.02)].mean() < 0.15


def test_fraction_is_checked():
    with pytest.raises(ValueError, match="fraction"):
        self_check_rows(np.zeros(1, np.uint64), 1.5)
