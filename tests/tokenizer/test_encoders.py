"""Other tokenizers behind one protocol, and clear words when one cannot be had."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pytest
import tokenizers

from tokpipe.errors import MissingExtraError, TokenizerError
from tokpipe.tokenizer.encoders import HuggingFaceEncoder, SentencePieceEncoder, TiktokenEncoder, open_encoder
from tokpipe.tokenizer.export import export_hugging_face

TEXTS = pa.array(["नमस्ते </s> un😀\n", "", "क़ on"], pa.large_string())


@pytest.fixture
def byte_level(tmp_path):
    """A byte-level BPE tokenizer.json of bytes and a few merges, as many models have."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=270,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    model.train_from_iterator(["the the the क का के"] * 5, trainer)
    model.save(str(tmp_path / "bytes.json"))
    return tmp_path / "bytes.json"


def test_exported_tokenizer_looks_the_same_as_the_model(small_model, tmp_path):
    path, _ = export_hugging_face(small_model, tmp_path)
    model, exported = open_encoder(str(small_model)), open_encoder(str(path))
    assert isinstance(model, SentencePieceEncoder) and isinstance(exported, HuggingFaceEncoder)
    assert model.encode(TEXTS).tolist() == exported.encode(TEXTS).tolist()
    assert list(model.pieces) == list(exported.pieces)
    assert model.is_byte.tolist() == exported.is_byte.tolist() and model.is_byte.sum() == 256
    assert model.unk_id == exported.unk_id == 0
    assert exported.encode(pa.array([], pa.large_string())).tolist() == []


def test_byte_level_tokens_that_are_no_whole_character_count_as_bytes(byte_level):
    encoder = open_encoder(str(byte_level))
    is_whole = dict(zip(encoder.pieces, ~encoder.is_byte, strict=True))
    assert is_whole["t"] and is_whole[" the"] and encoder.unk_id == -1
    assert 100 < encoder.is_byte.sum() < 150  # the 128 bytes above ASCII, but for those that merged into characters
    ids = encoder.encode(pa.array(["😀"], pa.large_string()))
    assert len(ids) == 4 and encoder.is_byte[ids].all()
    assert encoder.pieces[0] is None  # the special token is no text


def test_what_is_no_tokenizer_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"x\.json: not a Hugging Face"):
        open_encoder(str(tmp_path / "x.json"))
    with pytest.raises(TokenizerError, match="none"):
        open_encoder(str(tmp_path / "none.model"))


def test_tiktoken_vocabulary_that_cannot_be_fetched_says_so(monkeypatch):
    pytest.importorskip("tiktoken")
    with pytest.raises(TokenizerError, match="o200k_base"):
        open_encoder("tiktoken:nonsense")

    def refuse(name):
        raise ConnectionError("no route")

    monkeypatch.setattr("tiktoken.get_encoding", refuse)
    with pytest.raises(TokenizerError, match=r"could not be fetched.*no route.*TIKTOKEN_CACHE_DIR"):
        open_encoder("tiktoken:o200k_base")


def test_tiktoken_encoding_is_read_by_its_bytes(monkeypatch):
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([i]): i for i in range(256)} | {b"th": 256, b"the": 257, "क".encode()[:2]: 258, "क".encode(): 259}
    encoding = tiktoken.Encoding("tiny", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|end|>": 265})
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: encoding)
    encoder = TiktokenEncoder("o200k_base")
    ids = encoder.encode(pa.array(["the क", "<|end|>"], pa.large_string()))
    assert ids[:3].tolist() == [257, 32, 259] and 265 not in ids
    assert encoder.pieces[257] == "the" and encoder.pieces[258] is None and encoder.pieces[262] is None
    assert np.flatnonzero(encoder.is_byte).tolist() == [*range(128, 256), 258]
    assert encoder.pieces[265] is None


@pytest.mark.parametrize(("name", "package"), [("x.json", "tokenizers"), ("tiktoken:o200k_base", "tiktoken")])
def test_missing_package_names_the_extra(monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match="pip install"):
        open_encoder(name)
