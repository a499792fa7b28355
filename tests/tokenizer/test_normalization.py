"""What the normalisation promises: canonically equivalent for every text, byte for byte under `identity`."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokpipe.tokenizer import Tokenizer, TrainConfig, train_tokenizer
from tokpipe.tokenizer.normalization import NORMALIZATIONS, NUKTA, NUKTA_LETTERS, required_characters, write_rule_table

# U+2581 is SentencePiece's own mark for a space and comes back as one.
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"))
HINDI = st.text(st.sampled_from([*map(chr, range(0x0900, 0x0980)), *"\u200c\u200d \n\t₹a1", *NUKTA_LETTERS, NUKTA]))
SPECIAL = st.lists(st.sampled_from(["</s>", "<s>", "<unk>", "<pad>", "<0x0A>", " ", "  ", "\n", "\r\n", "😀", "\0"])).map("".join)
TEXTS = st.one_of(ANY_TEXT, HINDI, SPECIAL)


@pytest.fixture(scope="module")
def identity_model(tmp_path_factory, small_counts):
    folder = tmp_path_factory.mktemp("identity")
    train_tokenizer(small_counts, TrainConfig(vocab_size=1500, normalization="identity"), folder)
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def hindi_model(small_model):
    return Tokenizer.load(small_model)


@settings(deadline=None, max_examples=300)
@given(TEXTS)
def test_identity_gives_every_byte_back(identity_model, text):
    assert identity_model.decode(identity_model.encode(text)) == text


@settings(deadline=None, max_examples=300)
@given(TEXTS)
def test_hindi_gives_canonically_equivalent_text_back(hindi_model, text):
    decoded = hindi_model.decode(hindi_model.encode(text))
    assert unicodedata.normalize("NFD", decoded) == unicodedata.normalize("NFD", text)
    assert decoded == "".join(NORMALIZATIONS["hindi"].get(char, char) for char in text)


def test_two_spellings_of_a_nukta_letter_get_the_same_ids(hindi_model, identity_model):
    for letter in NUKTA_LETTERS:
        apart = unicodedata.normalize("NFD", letter)
        assert len(apart) == 2 and apart[1] == NUKTA
        assert hindi_model.encode(f"अ{letter}ा") == hindi_model.encode(f"अ{apart}ा")
        assert identity_model.decode(identity_model.encode(letter)) == letter


def test_the_eleven_letters_are_all_that_decompose_in_the_block():
    block = {chr(code) for code in range(0x0900, 0x0980)}
    assert set(NUKTA_LETTERS) == {char for char in block if unicodedata.normalize("NFD", char) != char}


def test_required_characters_leave_out_what_is_folded():
    assert set(required_characters("identity")) - set(required_characters("hindi")) == set(NUKTA_LETTERS)
    assert set("\u200c\u200d₹।॥०९़ॐ") <= set(required_characters("hindi"))


def test_rule_table_is_in_sentencepiece_form(tmp_path):
    write_rule_table("hindi", tmp_path / "rules.tsv")
    lines = (tmp_path / "rules.tsv").read_text().splitlines()
    assert len(lines) == 11 and "958\t915 93C" in lines
