"""The merge kernel against SentencePiece on made-up vocabularies that ordinary training never gives."""

from __future__ import annotations

import pyarrow as pa
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as pb2

from tokpipe.tokenizer import Tokenizer
from tokpipe.tokenizer.merge import MAX_SYMBOLS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
pieces = st.dictionaries(
    st.text(st.sampled_from("abcdé▁"), min_size=1, max_size=6),
    st.tuples(st.sampled_from([0.0, -0.0, -1.0, -1.0, -2.0, -3.5, -7.0]), st.sampled_from([NORMAL] * 6 + [UNUSED, USER_DEFINED])),
    min_size=1,
    max_size=40,
)


def serialized(made: dict[str, tuple[float, int]], *, dummy_prefix: bool = False) -> bytes:
    proto = pb2.ModelProto()
    proto.pieces.add(piece="<unk>", type=UNKNOWN)
    proto.pieces.add(piece="</s>", type=CONTROL)
    for byte in range(256):
        proto.pieces.add(piece=f"<0x{byte:02X}>", type=BYTE)
    for piece, (score, piece_type) in made.items():
        proto.pieces.add(piece=piece, score=score, type=piece_type)
    proto.trainer_spec.model_type, proto.trainer_spec.byte_fallback = 2, True
    proto.normalizer_spec.add_dummy_prefix, proto.normalizer_spec.remove_extra_whitespaces = dummy_prefix, False
    return proto.SerializeToString()


@settings(max_examples=60, deadline=None)
@given(made=pieces, texts=st.lists(st.text(st.sampled_from("abcdeé ▁"), max_size=25), max_size=30), dummy_prefix=st.booleans())
def test_any_vocabulary_merges_as_sentencepiece_does(made, texts, dummy_prefix):
    model = serialized(made, dummy_prefix=dummy_prefix)
    expected = sentencepiece.SentencePieceProcessor(model_proto=model).encode(texts)
    ids, offsets = Tokenizer(model, "made up").encode_batch(pa.array(texts, pa.large_string()))
    assert [ids[offsets[d] : offsets[d + 1]].tolist() for d in range(len(texts))] == expected


def test_lengths_around_the_limit_of_the_kernel_agree():
    made = {"a": (-9.0, NORMAL), "aa": (-1.0, NORMAL), "aaa": (-2.0, UNUSED), "a" * 300: (-3.0, NORMAL), "▁": (-9.0, NORMAL)}
    made |= {"a" * n: (-4.0 - n, NORMAL) for n in (4, 5, 8, 16, 32, 64, 128, MAX_SYMBOLS)}
    model = serialized(made)
    texts = [character * n for character in ("a", "é", "क") for n in range(MAX_SYMBOLS - 3, MAX_SYMBOLS + 4)]
    expected = sentencepiece.SentencePieceProcessor(model_proto=model).encode(texts)
    ids, offsets = Tokenizer(model, "long").encode_batch(pa.array(texts, pa.large_string()))
    assert [ids[offsets[d] : offsets[d + 1]].tolist() for d in range(len(texts))] == expected
