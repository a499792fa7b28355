"""What the installed SentencePiece does where its releases differ, asked of SentencePiece itself with models of a few pieces."""

from __future__ import annotations

from functools import cache
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as _untyped_pb2

from tokpipe.tokenizer.vocabulary import NORMAL, UNKNOWN, UNUSED

_pb2: Any = _untyped_pb2


def _encode(text: str, pieces: dict[str, tuple[float, int]]) -> list[str]:
    """The pieces of a text by a BPE model of `pieces`: string to score and type."""
    proto = _pb2.ModelProto()
    for piece, (score, piece_type) in {"<unk>": (0.0, UNKNOWN), **pieces}.items():
        proto.pieces.add(piece=piece, score=score, type=piece_type)
    proto.trainer_spec.model_type = _pb2.TrainerSpec.BPE
    proto.normalizer_spec.add_dummy_prefix = proto.normalizer_spec.remove_extra_whitespaces = False
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    return [processor.id_to_piece(i) for i in processor.encode(text)]


@cache
def unused_characters_are_unknown() -> bool:
    """Whether an UNUSED piece of one character, which cannot be split, counts as unknown (release 0.2.3) or keeps its id."""
    return _encode("a", {"a": (-1.0, UNUSED)}) == ["<unk>"]


@cache
def negative_zero_is_lower() -> bool:
    """Whether a score of -0.0, which training gives the first merge, loses against 0.0 (release 0.2.3) or ties with it."""
    characters = dict.fromkeys("abc", (-9.0, NORMAL))
    return _encode("abc", {**characters, "ab": (-0.0, NORMAL), "bc": (0.0, NORMAL)}) == ["a", "bc"]
