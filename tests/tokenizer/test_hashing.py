"""Document hashes are XXH64 for ever, and nothing is read past the end of a buffer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tokpipe.tokenizer import document_hashes
from tokpipe.tokenizer.hashing import column_bytes, hash_bytes, load_part, same_bytes
from tokpipe.tokenizer.jit import kernel


@kernel
def part(data, start, length, stop):
    return load_part(data, start, length, stop)


@kernel
def hashed(data, start, length, stop):
    return hash_bytes(data, start, length, stop)


@kernel
def same(left, left_start, right, right_start, length):
    return same_bytes(left, left_start, left.shape[0], right, right_start, right.shape[0], length)


@settings(deadline=None)
@given(st.lists(st.text(max_size=90), max_size=20), st.integers(0, 3))
def test_document_hashes_are_xxh64_of_the_bytes(texts, skip):
    column = pa.array(texts, pa.large_string())[skip:]
    assert document_hashes(column).tolist() == [xxhash.xxh64_intdigest(t.encode()) for t in texts[skip:]]


def test_document_hashes_stay_as_they_are():
    # Changing these would move documents between training and held-out in every dataset.
    assert document_hashes(pa.array(["", "a", "नमस्ते"], pa.large_string())).tolist() == [
        0xEF46DB3751D8E999,
        0xD24EC4F1A98C6E5B,
        xxhash.xxh64_intdigest("नमस्ते".encode()),
    ]


@pytest.mark.parametrize("size", range(1, 20))
def test_load_part_reads_only_what_lies_before_the_stop(size):
    # The bytes after `stop` are poison: they must not show in any result.
    data = np.full(40, 0xEE, np.uint8)
    data[:size] = np.arange(1, size + 1)
    for start in range(size):
        for length in range(1, min(8, size - start) + 1):
            expected = int.from_bytes(bytes(range(start + 1, start + length + 1)), "little")
            assert int(part(data, start, length, size)) == expected


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=60), st.integers(0, 7))
def test_hash_depends_on_the_bytes_alone(key, shift):
    alone = np.frombuffer(key, np.uint8)
    inside = np.frombuffer(b"x" * shift + key + b"y" * 9, np.uint8)
    assert hashed(alone, 0, len(key), len(key)) == hashed(inside, shift, len(key), len(inside))


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=40), st.data())
def test_same_bytes_sees_every_byte(key, data):
    left = np.frombuffer(key, np.uint8)
    right = np.frombuffer(b"ab" + key, np.uint8).copy()
    assert same(left, 0, right, 2, len(key))
    right[2 + data.draw(st.integers(0, len(key) - 1))] ^= 1
    assert not same(left, 0, right, 2, len(key))


def test_column_bytes_takes_slices_and_empty_columns():
    data, starts = column_bytes(pa.array(["ab", "", "कx"], pa.large_string()).slice(1))
    assert bytes(data) == "कx".encode() and starts.tolist() == [0, 0, 4]
    for empty in ([], [""]):
        data, starts = column_bytes(pa.array(empty, pa.large_string()))
        assert len(data) == 0 and starts.tolist() == [0] * (len(empty) + 1)


@pytest.mark.parametrize("texts", [pa.array(["a"]), pa.array(["a", None], pa.large_string())])
def test_column_bytes_refuses_other_columns(texts):
    with pytest.raises(ValueError, match=r"LargeStringArray|nulls"):
        column_bytes(texts)
