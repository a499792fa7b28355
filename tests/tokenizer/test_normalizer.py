"""Rules are read out of compiled tables as they went in."""

from __future__ import annotations

import io

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as pb2

from tokpipe.errors import TokenizerError
from tokpipe.tokenizer.normalizer import one_character_rules


def compiled(rules: dict[str, str], folder) -> bytes:
    """The table that SentencePiece's own trainer makes of rules."""
    tsv = folder / "rules.tsv"
    tsv.write_text(
        "".join(
            f"{' '.join(f'{ord(c):X}' for c in key)}\t{' '.join(f'{ord(c):X}' for c in image)}\n" for key, image in rules.items()
        )
    )
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c"] * 9), model_writer=writer, vocab_size=9, hard_vocab_limit=False, model_type="char",
        normalization_rule_tsv=str(tsv), minloglevel=2,
    )  # fmt: skip
    return pb2.ModelProto.FromString(writer.getvalue()).normalizer_spec.precompiled_charsmap


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.characters(codec="utf-8", exclude_characters="\0\n\t \r▁"),
        st.text(st.sampled_from("abकé😀"), min_size=1, max_size=4),
        min_size=1,
    )
)
def test_rules_come_back(tmp_path_factory, rules):
    rules = {key: image for key, image in rules.items() if key not in "abकé😀"} or {"x": "y"}
    assert one_character_rules(compiled(rules, tmp_path_factory.mktemp("rules"))) == rules


def test_longer_keys_and_empty_images_are_told(tmp_path):
    assert one_character_rules(compiled({"q": "r", "q\u0301": "s"}, tmp_path)) is None
    assert one_character_rules(compiled({"q": ""}, tmp_path)) is None
    assert one_character_rules(b"") == {}


@pytest.mark.parametrize("name", ["nfkc", "nmt_nfkc_cf"])
def test_standard_tables_have_longer_keys(name):
    proto = pb2.ModelProto.FromString(sentencepiece.SentencePieceNormalizer(rule_name=name).serialized_model_proto())
    assert one_character_rules(proto.normalizer_spec.precompiled_charsmap) is None


@pytest.mark.parametrize("table", [b"\x04", b"\xff\xff\xff\x7f....", b"\x03\x00\x00\x00abcd"])
def test_damaged_table_is_an_error(table):
    with pytest.raises(TokenizerError, match="damaged"):
        one_character_rules(table)
