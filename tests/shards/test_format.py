"""The bytes: arithmetic, the header, and the specification's own example."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokpipe.shards.format
from tokpipe.errors import ShardFormatError
from tokpipe.shards.format import (
    DTYPE_CODES,
    IndexHeader,
    as_token_ids,
    bin_num_bytes,
    check_lengths,
    document_byte_offsets,
    dtype_for_vocab,
    idx_num_bytes,
    indices_start,
    offsets_start,
    parse_header,
    token_dtype,
)
from tokpipe.shards.writer import ShardWriter

SPEC = Path(__file__).parents[2] / "docs" / "format.md"


def spec_hex(name: str) -> bytes:
    """The bytes of a file as docs/format.md prints them: `00000000  4d 4d ...` lines under the file's name."""
    block = re.search(rf"```\n{re.escape(name)}\n(.*?)```", SPEC.read_text(encoding="utf-8"), re.DOTALL)
    assert block, f"docs/format.md has no hex of {name}"
    return bytes.fromhex("".join(line[8:].split("|")[0] for line in block[1].splitlines()))


def test_writer_gives_the_bytes_of_the_specification(tmp_path):
    with ShardWriter(tmp_path / "example", dtype="uint16") as writer:
        writer.append(np.array([5, 300, 2, 7, 2, 2]), np.array([0, 3, 5, 6]))
        writer.commit()
    assert (tmp_path / "example.bin").read_bytes() == spec_hex("example.bin")
    assert (tmp_path / "example.idx").read_bytes() == spec_hex("example.idx")


def test_example_index_spelled_out():
    # The same 102 bytes once more, by hand, so that the specification cannot drift together with the code.
    assert spec_hex("example.bin") == bytes.fromhex("0500 2c01 0200 0700 0200 0200")
    assert spec_hex("example.idx") == bytes.fromhex(
        "4d4d494449445800 00 0100000000000000 08 0300000000000000 0400000000000000"
        "03000000 02000000 01000000"
        "0000000000000000 0600000000000000 0a00000000000000"
        "0000000000000000 0100000000000000 0200000000000000 0300000000000000"
    )


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [
        (1, "uint16"),
        (32_000, "uint16"),
        (65_500, "uint16"),  # the largest vocabulary of two bytes
        (65_501, "int32"),
        (65_536, "int32"),  # would fit uint16, but Megatron's builder writes int32 here
        (2**31, "int32"),
    ],
)
def test_dtype_for_vocab(vocab_size, dtype):
    assert dtype_for_vocab(vocab_size) == dtype


@pytest.mark.parametrize("vocab_size", [0, -1, 2**31 + 1])
def test_dtype_for_vocab_refuses(vocab_size):
    with pytest.raises(ValueError, match="vocab_size"):
        dtype_for_vocab(vocab_size)


@given(st.sampled_from(sorted(DTYPE_CODES)), st.integers(1, 2**31 - 1))
def test_header_round_trip(dtype, num_documents):
    header = IndexHeader(dtype=dtype, num_documents=num_documents)
    assert len(header.pack()) == 34
    assert parse_header(header.pack(), where="x.idx") == header


@given(st.integers(0, 2**31 - 1))
def test_arrays_fill_the_index(num_documents):
    assert offsets_start(num_documents) == 34 + 4 * num_documents
    assert indices_start(num_documents) == offsets_start(num_documents) + 8 * num_documents
    assert idx_num_bytes(num_documents) == indices_start(num_documents) + 8 * (num_documents + 1)


GOOD = IndexHeader(dtype="uint16", num_documents=3).pack()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "holds 0 bytes, an index has at least 34"),
        (GOOD[:33], "holds 33 bytes"),
        (b"PK\x03\x04" + GOOD[4:], "not a Megatron-style index"),
        (GOOD[:9] + (2).to_bytes(8, "little") + GOOD[17:], "format version 2, this tokpipe reads version 1"),
        (GOOD[:17] + b"\x05" + GOOD[18:], "dtype code 5 is Megatron's int64"),
        (GOOD[:17] + b"\x63" + GOOD[18:], "dtype code 99 is no dtype"),
        (GOOD[:18] + (0).to_bytes(8, "little") + (1).to_bytes(8, "little"), "promises 0 documents"),
        (GOOD[:18] + (2**31).to_bytes(8, "little") + (2**31 + 1).to_bytes(8, "little"), "promises 2,147,483,648 documents"),
        (GOOD[:26] + (3).to_bytes(8, "little"), "3 sequences but 3 document indices, expected 4"),
    ],
)
def test_parse_header_refuses_with_the_values(raw, message):
    with pytest.raises(ShardFormatError, match=message) as caught:
        parse_header(raw, where="some/where.idx")
    assert "some/where.idx" in str(caught.value)


@given(st.lists(st.integers(1, 2**31 - 1), max_size=20), st.sampled_from([2, 4]), st.integers(0, 2**50))
def test_document_byte_offsets_are_the_exclusive_sums(lengths, itemsize, first):
    offsets, following = document_byte_offsets(np.array(lengths, np.int32), first=first, itemsize=itemsize)
    expected = [first + itemsize * sum(lengths[:i]) for i in range(len(lengths) + 1)]
    assert offsets.tolist() == expected[:-1]
    assert following == expected[-1]


def test_sizes_pass_four_gigabytes_without_wrapping():
    assert bin_num_bytes(10**12, "uint16") == 2 * 10**12
    assert bin_num_bytes(10**12, "int32") == 4 * 10**12


@pytest.mark.parametrize(
    ("ids", "dtype", "message"),
    [
        (np.array([1, 65_536]), "uint16", "id 65,536 does not fit uint16"),
        (np.array([70_000], np.int32), "uint16", "id 70,000 does not fit"),
        (np.array([-1]), "uint16", "id -1 does not fit"),
        (np.array([-5], np.int32), "int32", "id -5 does not fit int32"),  # fits the type, but no vocabulary
        (np.array([2**31], np.int64), "int32", "id 2,147,483,648 does not fit int32"),
        (np.array([1.0]), "uint16", "one-dimensional integer array, got float64"),
        (np.array([[1]]), "uint16", "shape"),
    ],
)
def test_ids_are_refused_rather_than_wrapped(ids, dtype, message):
    with pytest.raises(ValueError, match=message):
        as_token_ids(ids, dtype)


def test_ids_of_the_right_type_are_not_copied():
    ids = np.arange(5, dtype=np.uint16)
    assert np.shares_memory(as_token_ids(ids, "uint16"), ids)
    assert as_token_ids(np.array([65_535]), "uint16").tolist() == [65_535]


def test_token_dtype_is_little_endian_and_known():
    assert token_dtype("uint16") == np.dtype("<u2")
    with pytest.raises(ValueError, match="uint8"):
        token_dtype("uint8")


def test_check_lengths():
    check_lengths(np.array([], np.int64))
    check_lengths(np.array([1, 2**31 - 1]))
    with pytest.raises(ValueError, match="document 1 of the batch has 0 tokens"):
        check_lengths(np.array([3, 0]))
    with pytest.raises(ValueError, match="2,147,483,648 tokens"):
        check_lengths(np.array([2**31]))


def test_examples_in_docstrings_run():
    assert doctest.testmod(tokpipe.shards.format).failed == 0
