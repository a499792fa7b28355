"""Loading, fingerprints and the small calls of `Tokenizer`; exact/test_exactness.py proves the ids."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as pb2

from tokpipe.errors import TokenizerError
from tokpipe.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(small_model):
    return Tokenizer.load(small_model)


def test_file_and_folder_load_alike(tokenizer, small_model):
    other = Tokenizer.load(str(small_model / "tokenizer.model"))
    assert other.fingerprint == tokenizer.fingerprint and other.vocab_size == tokenizer.vocab_size == 1500
    assert (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2, 3)
    assert tokenizer.dtype == "uint16" and tokenizer.id_to_piece(2) == "</s>"


@pytest.mark.parametrize("content", [None, b"not a model", b"", b"\x08\x01"])
def test_what_is_no_model_is_an_error_that_names_it(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.model"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("field", ["score", "type", "piece", "prefix", "path"])
def test_fingerprint_sees_what_decides_ids_and_nothing_else(tokenizer, small_model, tmp_path, field):
    proto = pb2.ModelProto.FromString((small_model / "tokenizer.model").read_bytes())
    if field == "score":
        proto.pieces[-1].score -= 1
    elif field == "type":
        proto.pieces[-1].type = 5
    elif field == "piece":
        proto.pieces[-1].piece = "\U0001f98a"
    elif field == "prefix":
        proto.normalizer_spec.add_dummy_prefix = True
    else:
        proto.trainer_spec.model_prefix = "/somewhere/else"
    (tmp_path / "x.model").write_bytes(proto.SerializeToString())
    assert (Tokenizer.load(tmp_path / "x.model").fingerprint == tokenizer.fingerprint) == (field == "path")


def test_model_without_end_mark_says_none(small_model, tmp_path):
    proto = pb2.ModelProto.FromString((small_model / "tokenizer.model").read_bytes())
    proto.pieces[2].piece, proto.pieces[2].type = "\U0001f98a", 1
    (tmp_path / "x.model").write_bytes(proto.SerializeToString())
    assert Tokenizer.load(tmp_path / "x.model").eos_id is None


@settings(deadline=None)
@given(st.text(st.sampled_from("aé ंकि\u200d\n</s>\0😀\t") | st.characters(codec="utf-8", exclude_characters="▁")))
def test_decode_undoes_encode_up_to_nukta_spelling(tokenizer, text):
    import unicodedata

    decoded = tokenizer.decode(tokenizer.encode(text))
    assert unicodedata.normalize("NFD", decoded) == unicodedata.normalize("NFD", text)
    ids, _ = tokenizer.encode_batch(pa.array([text], pa.large_string()), eos_id=2)
    assert tokenizer.decode(ids) == decoded


@pytest.mark.parametrize("text", ["</s>", "<s>", "<unk>", "<pad>", "<0x0A>", "a</s>b", "<0xE0><0xA4>"])
def test_names_of_special_tokens_are_text(tokenizer, text):
    ids, _ = tokenizer.encode_batch(pa.array([text], pa.large_string()))
    assert min(ids) > 3 and tokenizer.decode(ids) == text


def test_empty_columns_and_documents(tokenizer):
    ids, offsets = tokenizer.encode_batch(pa.array([], pa.large_string()), eos_id=2)
    assert len(ids) == 0 and offsets.tolist() == [0] and ids.dtype == np.uint16
    ids, offsets = tokenizer.encode_batch(pa.array(["", ""], pa.large_string()), bos_id=1, eos_id=2)
    assert ids.tolist() == [1, 2, 1, 2] and offsets.tolist() == [0, 2, 4]


def test_the_first_batch_says_which_path_it_takes(small_model, tmp_path, caplog):
    shutil.copy(small_model / "tokenizer.model", tmp_path / "x.model")
    with caplog.at_level("DEBUG"):
        tokenizer = Tokenizer.load(tmp_path / "x.model")
        assert caplog.text == ""
        tokenizer.encode_batch(pa.array(["text"], pa.large_string()))
    assert f"{tmp_path / 'x.model'}: fast path" in caplog.text
