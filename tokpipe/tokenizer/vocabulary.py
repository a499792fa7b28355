"""What a SentencePiece model file says: its pieces, its settings, and a fingerprint of what decides the ids."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from sentencepiece import sentencepiece_model_pb2 as _untyped_pb2

from tokpipe.errors import TokenizerError

_pb2: Any = _untyped_pb2
SPACE_MARK = "\u2581"
"""The character that stands for a space inside pieces."""

# The numbers of ModelProto.SentencePiece.Type and TrainerSpec.ModelType.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The parts of a model that decide how text becomes ids."""

    model_type: str
    """`bpe`, `unigram`, `word` or `char`."""
    pieces: tuple[str, ...]
    """The string of every id, spaces as U+2581."""
    scores: NDArray[np.float32]
    """(vocab_size,) the higher, the earlier it is merged."""
    types: NDArray[np.uint8]
    """(vocab_size,) NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED or BYTE."""
    byte_fallback: bool
    add_dummy_prefix: bool
    space_as_suffix: bool
    """The dummy prefix goes to the end of the text instead."""
    remove_extra_whitespaces: bool
    escape_whitespaces: bool
    charsmap: bytes
    """The normaliser's compiled rules; empty for none."""

    def fingerprint(self) -> str:
        """32 hexadecimal digits over pieces, scores, types and normaliser: equal exactly if all ids are bound to be equal.

        Training settings and file names do not enter.
        """
        digest = hashlib.sha256()
        settings = [self.model_type, self.byte_fallback, self.add_dummy_prefix, self.space_as_suffix]
        settings += [self.remove_extra_whitespaces, self.escape_whitespaces]
        for part in (json.dumps([settings, self.pieces]).encode(), self.charsmap):
            digest.update(len(part).to_bytes(8, "little") + part)
        digest.update(self.scores.astype("<f4").tobytes() + self.types.tobytes())
        return digest.hexdigest()[:32]


def code_points(text: str) -> NDArray[np.uint32]:
    """The code points of a text, (num_characters,) uint32."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def read_vocabulary(model_bytes: bytes, name: str) -> Vocabulary:
    """Parse a serialized model.

    Raises:
        TokenizerError: if the bytes are not a SentencePiece model; `name` says where they come from.
    """
    proto = _pb2.ModelProto()
    try:
        proto.ParseFromString(model_bytes)
    except DecodeError as error:
        raise TokenizerError(
            f"{name}: not a SentencePiece model ({len(model_bytes):,} bytes that do not parse as one)"
        ) from error
    if not proto.pieces:
        raise TokenizerError(f"{name}: a SentencePiece model without pieces, nothing can be encoded with it")
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    return Vocabulary(
        model_type=MODEL_TYPES[trainer.model_type],
        pieces=tuple(piece.piece for piece in proto.pieces),
        scores=np.array([piece.score for piece in proto.pieces], np.float32),
        types=np.array([piece.type for piece in proto.pieces], np.uint8),
        byte_fallback=trainer.byte_fallback,
        add_dummy_prefix=normalizer.add_dummy_prefix,
        space_as_suffix=trainer.treat_whitespace_as_suffix,
        remove_extra_whitespaces=normalizer.remove_extra_whitespaces,
        escape_whitespaces=normalizer.escape_whitespaces,
        charsmap=normalizer.precompiled_charsmap,
    )


def without_dummy_prefix(model_bytes: bytes) -> bytes:
    """The same model, but text is encoded as it stands, with no virtual space around it."""
    proto = _pb2.ModelProto()
    proto.ParseFromString(model_bytes)
    proto.normalizer_spec.add_dummy_prefix = False
    serialized: bytes = proto.SerializeToString()
    return serialized
