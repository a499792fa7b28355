"""The warm start changes no id, and units of another tokenizer are never used."""

from __future__ import annotations

import json
import logging
import shutil

import numpy as np
import pyarrow as pa
import pytest

from tokpipe.tokenizer import Tokenizer, TrainConfig, WordCounter, train_tokenizer
from tokpipe.tokenizer.unit_table import USED
from tokpipe.tokenizer.warm import frequent_words


@pytest.fixture
def warm_folder(tmp_path, small_model, small_counts):
    shutil.copy(small_model / "tokenizer.model", tmp_path)
    assert Tokenizer.load(tmp_path).build_warm_units(small_counts, tmp_path) > 1000
    return tmp_path


def test_warm_and_cold_give_the_same_ids(warm_folder, small_model, text_maker_session):
    texts = pa.array(text_maker_session("hi") + text_maker_session("en") + ["new wörds", ""], pa.large_string())
    warm, cold = Tokenizer.load(warm_folder), Tokenizer.load(small_model / "tokenizer.model")
    assert "known from the start" in warm.path_note and "known" not in cold.path_note
    for a, b in zip(warm.encode_batch(texts, eos_id=2), cold.encode_batch(texts, eos_id=2), strict=True):
        assert np.array_equal(a, b)
    assert warm._units.own_table.counters[USED] < cold._units.own_table.counters[USED] / 4


def test_building_twice_gives_the_same_bytes(warm_folder, small_counts):
    before = {path.name: path.read_bytes() for path in warm_folder.iterdir()}
    Tokenizer.load(warm_folder).build_warm_units(small_counts, warm_folder)
    assert {path.name: path.read_bytes() for path in warm_folder.iterdir()} == before


def test_units_of_another_tokenizer_are_left_aside(warm_folder, small_counts, tmp_path_factory, caplog):
    other = tmp_path_factory.mktemp("other")
    train_tokenizer(small_counts, TrainConfig(vocab_size=1400), other)
    shutil.copy(other / "tokenizer.model", warm_folder)
    with caplog.at_level(logging.WARNING):
        tokenizer = Tokenizer.load(warm_folder)
    assert "known" not in tokenizer.path_note and "another tokenizer" in caplog.text


@pytest.mark.parametrize("name", ["units.npy", "unit_keys.npy", "unit_ids.npy"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damaged_arrays_are_left_aside(warm_folder, name, damage, caplog):
    path = warm_folder / name
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(data if damage == "flip" else data[:-8])
    with caplog.at_level(logging.WARNING):
        assert "known" not in Tokenizer.load(warm_folder).path_note
    assert name in caplog.text


def test_another_layout_is_left_aside(warm_folder):
    description = json.loads((warm_folder / "units.json").read_text())
    (warm_folder / "units.json").write_text(json.dumps({**description, "layout": 99}))
    assert "known" not in Tokenizer.load(warm_folder).path_note


@pytest.mark.parametrize("text", ["", "[]", "{}", "null"])
def test_a_damaged_description_is_left_aside(warm_folder, text, caplog):
    (warm_folder / "units.json").write_text(text)
    assert "known" not in Tokenizer.load(warm_folder).path_note
    assert "units.json: damaged" in caplog.text


def test_mapped_arrays_are_not_written_to(warm_folder, text_maker_session):
    before = {path.name: path.read_bytes() for path in warm_folder.iterdir()}
    Tokenizer.load(warm_folder).encode_batch(pa.array([*text_maker_session("en", seed=9), "unheard of"], pa.large_string()))
    assert {path.name: path.read_bytes() for path in warm_folder.iterdir()} == before


def test_frequent_words_come_first_and_no_more_than_asked(tmp_path):
    with WordCounter("x") as counter:
        counter.add(pa.array(["a a a a b b c d d d d d d d d d"], pa.large_string()))
        counter.write(tmp_path / "counts")
    words = [w for batch in frequent_words(tmp_path / "counts") for w in batch.to_pylist()]
    assert words[:3] == [" d", " a", " b"] and len(words) == 5
    assert [w for batch in frequent_words(tmp_path / "counts", 2) for w in batch.to_pylist()] == [" d"]


def test_max_units_is_checked_and_kept(warm_folder, small_counts):
    tokenizer = Tokenizer.load(warm_folder)
    with pytest.raises(ValueError, match="max_units"):
        tokenizer.build_warm_units(small_counts, warm_folder, max_units=0)


def test_plain_path_has_no_warm_units(tmp_path, small_counts):
    train_tokenizer(small_counts, TrainConfig(vocab_size=1400), tmp_path)
    from sentencepiece import sentencepiece_model_pb2 as pb2

    proto = pb2.ModelProto.FromString((tmp_path / "tokenizer.model").read_bytes())
    proto.normalizer_spec.remove_extra_whitespaces = True
    (tmp_path / "tokenizer.model").write_bytes(proto.SerializeToString())
    assert Tokenizer.load(tmp_path).build_warm_units(small_counts, tmp_path) == 0
    assert not (tmp_path / "units.json").exists()
