"""The matrix comes from the vocabulary, and models that cutting would falsify are told apart."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as pb2

from tokpipe.tokenizer.classes import DEVANAGARI, INSIDE, LETTER, MIXED, PUNCTUATION, SPACE, literal_classes
from tokpipe.tokenizer.cuts import cut_obstacle, derive_cuts, describe_cuts, safe_matrix
from tokpipe.tokenizer.normalizer import one_character_rules
from tokpipe.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, read_vocabulary


def model(*pieces, byte_fallback=True, model_type=2, **normalizer):
    """A model of the given (piece, type) pairs beside the special ones."""
    proto = pb2.ModelProto()
    proto.pieces.add(piece="<unk>", type=UNKNOWN)
    proto.pieces.add(piece="</s>", type=CONTROL)
    for byte in range(256 if byte_fallback else 0):
        proto.pieces.add(piece=f"<0x{byte:02X}>", type=BYTE)
    for i, (piece, piece_type) in enumerate(pieces):
        proto.pieces.add(piece=piece, type=piece_type, score=-float(i))
    proto.trainer_spec.model_type, proto.trainer_spec.byte_fallback = model_type, byte_fallback
    settings = {"add_dummy_prefix": False, "remove_extra_whitespaces": False, "escape_whitespaces": True, **normalizer}
    for name, value in settings.items():
        setattr(proto.normalizer_spec, name, value)
    return read_vocabulary(proto.SerializeToString(), "made up")


WORD = ("▁the", NORMAL)


def test_matrix_of_one_piece():
    safe = safe_matrix(model(WORD))
    assert not safe[SPACE, LETTER] and not safe[LETTER, LETTER]
    assert safe[LETTER, SPACE] and safe[SPACE, SPACE] and safe[DEVANAGARI, DEVANAGARI]
    assert not safe[MIXED].any() and not safe[:, MIXED].any() and not safe[INSIDE].any()


@pytest.mark.parametrize("piece_type, joined", [(NORMAL, True), (USER_DEFINED, True), (UNUSED, True), (CONTROL, False)])
def test_matrix_counts_what_can_come_from_text(piece_type, joined):
    assert safe_matrix(model(WORD, ("a-", piece_type)))[LETTER, PUNCTUATION] != joined


@pytest.mark.parametrize(
    "vocabulary, rules, reason",
    [
        (model(WORD), {}, None),
        (model(WORD, model_type=1), {}, "a unigram model"),
        (model(WORD, byte_fallback=False), {}, "no byte fallback"),
        (model(WORD, escape_whitespaces=False), {}, "not escaped"),
        (model(WORD, remove_extra_whitespaces=True), {}, "extra spaces"),
        (model(WORD), None, "rules of several characters"),
        (model(WORD), {" ": "_"}, "replaces spaces"),
        (model(WORD, ("aé", USER_DEFINED)), {"é": "e"}, "user-defined symbol 'aé'"),
        (model(WORD, ("é", UNUSED)), {"é": "e"}, "unused piece 'é'"),
        (model(WORD, ("x", CONTROL)), {}, "special piece 'x'"),
        (model(WORD, ("\0", NORMAL)), {}, "null character"),
        (model(WORD, ("a\0b", USER_DEFINED)), {}, "null character"),
        (model(WORD, ("of▁the", NORMAL), ("क▁क", NORMAL)), {}, "join words across spaces"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_obstacles_are_named(vocabulary, rules, reason):
    found = cut_obstacle(vocabulary, rules)
    assert found is None if reason is None else reason in str(found)


def test_scores_without_order_are_an_obstacle():
    vocabulary = model(WORD, ("▁a", NORMAL))
    vocabulary.scores[-1] = np.nan
    assert "not numbers" in str(cut_obstacle(vocabulary, {}))


def test_cuts_are_described_in_words():
    assert describe_cuts(model(WORD, ("क।", NORMAL))).split() == ["letter+letter", "space+letter", "Devanagari+danda"]


def test_encoding_between_cuts_equals_encoding_whole(small_model):
    # The proof of docs/design.md, tried: strings cut in Python and encoded piecewise by SentencePiece itself.
    path = small_model / "tokenizer.model"
    vocabulary = read_vocabulary(path.read_bytes(), "small")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    cuts = derive_cuts(vocabulary, one_character_rules(vocabulary.charsmap) or {})
    classes = literal_classes()
    rng = random.Random(5)
    num_cuts = 0
    for _ in range(2000):
        text = "".join(rng.choice("ab te5किन।ऽ ▁é\u200d.(,\n\t😀") for _ in range(rng.randrange(1, 30)))
        places = [i for i, (a, b) in enumerate(pairwise(text), 1) if cuts.safe[16 * classes[ord(a)] + classes[ord(b)]]]
        num_cuts += len(places)
        parts = [text[a:b] for a, b in pairwise([0, *places, len(text)])]
        assert [i for part in parts for i in processor.encode(part)] == processor.encode(text)
    assert num_cuts > 10_000
