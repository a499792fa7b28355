"""The table of units: bounded, emptied when full, never wrong; and the encoder around it."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import sentencepiece
from numba import int64

from tokpipe.tokenizer.hashing import column_bytes
from tokpipe.tokenizer.jit import kernel
from tokpipe.tokenizer.normalizer import one_character_rules
from tokpipe.tokenizer.unit_table import TIMES_EMPTIED, USED, add_units, compact_entries, find_unit, new_table, unit_key
from tokpipe.tokenizer.units import UnitEncoder
from tokpipe.tokenizer.vocabulary import read_vocabulary


@kernel
def ids_of(table, data, start, length, out):
    """Copy a unit's ids to `out`; returns their number, or -1 if the unit is not in the table."""
    slot = find_unit(table, unit_key(data, start, length, data.shape[0]), data, start, length, data.shape[0])
    if slot < 0:
        return -1
    num_ids = int64((table.entries[slot, 2] >> np.uint64(16)) & np.uint64(0xFFFF))
    for i in range(num_ids):
        out[i] = table.ids[int64(table.entries[slot, 2] >> np.uint64(32)) + i]
    return num_ids


def stored(table, units: dict[bytes, list[int]]) -> None:
    starts = np.cumsum([0, *map(len, units)]).astype(np.int64)
    id_starts = np.cumsum([0, *map(len, units.values())]).astype(np.int64)
    add_units(
        table,
        np.frombuffer(b"".join(units), np.uint8),
        starts,
        np.concatenate([np.array(ids, np.int32) for ids in units.values()]),
        id_starts,
    )


def found(table, key: bytes) -> list[int] | None:
    out = np.zeros(64, np.int32)
    # The key lies in the middle of other bytes: they must not matter.
    data = np.frombuffer(b"~~~" + key + b"~~", np.uint8)
    number = ids_of(table, data, 3, len(key), out)
    return None if number < 0 else out[:number].tolist()


def some_units(rng: random.Random, count: int) -> dict[bytes, list[int]]:
    sizes = [1, 2, 7, 8, 9, 15, 16, 17, 24, 40]
    return {rng.randbytes(rng.choice(sizes)): [rng.randrange(1 << 21) for _ in range(rng.randrange(1, 9))] for _ in range(count)}


def test_units_are_found_with_their_ids():
    units = some_units(random.Random(1), 500)
    table = new_table(1024)
    stored(table, units)
    assert table.counters[USED] == len(units) and table.counters[TIMES_EMPTIED] == 0
    assert all(found(table, key) == ids for key, ids in units.items())
    # Zero bytes are bytes: a key padded with them is another key.
    assert all(found(table, key + b"\0") is None for key in units if key + b"\0" not in units)


def test_full_table_is_emptied_and_holds_what_came_after():
    units = some_units(random.Random(2), 3000)
    table = new_table(1024)
    stored(table, units)
    assert table.counters[TIMES_EMPTIED] >= 4 and table.counters[USED] <= 640
    last = list(units)[-1]
    assert found(table, last) == units[last] and found(table, next(iter(units))) is None


def test_compact_entries_keep_every_unit():
    units = some_units(random.Random(3), 300)
    table = new_table(4096)
    stored(table, units)
    entries = compact_entries(table)
    assert len(entries) == 512
    small = table._replace(entries=entries)
    assert all(found(small, key) == ids for key, ids in units.items())


@pytest.mark.parametrize("capacity", [0, 8, 1000])
def test_capacity_must_be_a_power_of_two(capacity):
    with pytest.raises(ValueError, match="capacity"):
        new_table(capacity)


@pytest.fixture(scope="module")
def small(small_model):
    model_bytes = (small_model / "tokenizer.model").read_bytes()
    return model_bytes, read_vocabulary(model_bytes, "small")


def test_ids_stay_right_while_a_small_table_is_emptied_again_and_again(small, text_maker_session):
    model_bytes, vocabulary = small
    rng = random.Random(4)
    texts = [*text_maker_session("hi"), *text_maker_session("en")]
    texts += [" ".join("".join(rng.choices("abcdeकखिा", k=rng.randrange(1, 9))) for _ in range(300)) for _ in range(30)]
    encoder = UnitEncoder(model_bytes, vocabulary, one_character_rules(vocabulary.charsmap) or {}, capacity=1024)
    ids, offsets = encoder.encode(*column_bytes(pa.array(texts, pa.large_string())), "uint16", before=None, after=None)
    expected = sentencepiece.SentencePieceProcessor(model_proto=model_bytes).encode(texts)
    assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == expected
    assert encoder.own_table.counters[TIMES_EMPTIED] > 3


def test_text_is_not_read_past_its_end(small):
    # The same bytes at every distance from the end of a page of poison, which could complete a character or a unit.
    model_bytes, vocabulary = small
    encoder = UnitEncoder(model_bytes, vocabulary, one_character_rules(vocabulary.charsmap) or {})
    reference = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
    for text in ("a", "क", "é", "😀", "ab क", " कि", "word", "\u200d", "x" * 16, "y" * 17, "क" * 40):
        for poison in (b"\xa4\xa4\xa4", b"aaaaaaaaaaaaaaaaaaaaaaaa", b"\xff" * 20):
            raw = np.frombuffer(text.encode() + poison, np.uint8)[: len(text.encode())]
            ids, _ = encoder.encode(raw, np.array([0, len(raw)]), "uint16", before=None, after=None)
            assert ids.tolist() == reference.encode(text)


def test_capacity_of_an_encoder_has_a_floor(small):
    with pytest.raises(ValueError, match="at least 1,024"):
        UnitEncoder(*small, {}, capacity=512)
