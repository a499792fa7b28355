"""Tokenizers of any kind behind one small protocol, so that a report can set them side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokpipe.errors import MissingExtraError, TokenizerError
from tokpipe.tokenizer.model import Tokenizer
from tokpipe.tokenizer.vocabulary import BYTE, CONTROL, SPACE_MARK, UNKNOWN


class Encoder(Protocol):
    """What a report asks of a tokenizer."""

    @property
    def name(self) -> str:
        """What it is called in a report."""
        ...

    @property
    def pieces(self) -> Sequence[str | None]:
        """The text of each id; None for an id that is no text: special, or a byte that is not a whole character."""
        ...

    @property
    def is_byte(self) -> NDArray[np.bool_]:
        """(vocab_size,): ids that stand for single bytes or parts of characters."""
        ...

    @property
    def unk_id(self) -> int:
        """The id of unknown text, -1 if there is none."""
        ...

    def encode(self, texts: pa.LargeStringArray) -> NDArray[np.int64]:
        """Ids of all texts, one after the other, without special tokens."""
        ...


class SentencePieceEncoder:
    """A SentencePiece model, through `Tokenizer`."""

    def __init__(self, path: str | os.PathLike[str]):
        self.name = str(path)
        self.tokenizer = Tokenizer.load(path)
        vocabulary = self.tokenizer.vocabulary
        self.is_byte = vocabulary.types == BYTE
        no_text = self.is_byte | (vocabulary.types == CONTROL) | (vocabulary.types == UNKNOWN)
        self.pieces = [
            None if none else piece.replace(SPACE_MARK, " ") for none, piece in zip(no_text, vocabulary.pieces, strict=True)
        ]
        unknown = np.flatnonzero(vocabulary.types == UNKNOWN)
        self.unk_id = int(unknown[0]) if len(unknown) else -1

    def encode(self, texts: pa.LargeStringArray) -> NDArray[np.int64]:
        """Ids of all texts, one after the other."""
        return self.tokenizer.encode_batch(texts)[0].astype(np.int64)


class HuggingFaceEncoder:
    """A `tokenizer.json`. Special tokens that stand in a text are text here, as they are to SentencePiece."""

    def __init__(self, path: str | os.PathLike[str]):
        try:
            import tokenizers
        except ImportError as error:
            raise MissingExtraError(
                f"{path}: reading it needs the package `tokenizers`: pip install 'tokpipe[export]'"
            ) from error
        self.name = str(path)
        try:
            self.tokenizer: Any = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception
            raise TokenizerError(f"{path}: not a Hugging Face tokenizer.json ({error})") from error
        self.tokenizer.encode_special_tokens = True
        size = self.tokenizer.get_vocab_size()
        special = {number for number, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        texts = [self.tokenizer.decode([number], skip_special_tokens=False) for number in range(size)]
        raw = [self.tokenizer.id_to_token(number) or "" for number in range(size)]
        # `<0x41>` decodes to a whole character and is still a byte; half of a character decodes to U+FFFD.
        byte = [
            _is_byte_piece(piece) or ("\ufffd" in text and "\ufffd" not in piece) for piece, text in zip(raw, texts, strict=True)
        ]
        self.is_byte = np.array(byte)
        # A single word is decoded without the space in front of it, so spaces come from the piece itself.
        texts = [piece.replace(SPACE_MARK, " ") if SPACE_MARK in piece else text for piece, text in zip(raw, texts, strict=True)]
        self.pieces = [None if byte[n] or n in special else texts[n] for n in range(size)]
        unknown = getattr(self.tokenizer.model, "unk_token", None)
        number = None if unknown is None else self.tokenizer.token_to_id(unknown)
        self.unk_id = -1 if number is None else int(number)

    def encode(self, texts: pa.LargeStringArray) -> NDArray[np.int64]:
        """Ids of all texts, one after the other."""
        encodings = self.tokenizer.encode_batch(texts.to_pylist(), add_special_tokens=False)
        return np.concatenate([np.empty(0, np.int64), *(np.array(encoding.ids, np.int64) for encoding in encodings)])


class TiktokenEncoder:
    """An encoding of the package `tiktoken`, which downloads its vocabulary on first use."""

    def __init__(self, name: str):
        try:
            import tiktoken
        except ImportError as error:
            raise MissingExtraError(f"tiktoken:{name} needs the package `tiktoken`: pip install 'tokpipe[bench]'") from error
        self.name = f"tiktoken:{name}"
        if name not in tiktoken.list_encoding_names():
            raise TokenizerError(f"tiktoken has no encoding {name!r}; it has {', '.join(tiktoken.list_encoding_names())}")
        try:
            self.encoding: Any = tiktoken.get_encoding(name)
        except Exception as error:  # whatever the network raises
            raise TokenizerError(
                f"tiktoken:{name}: its vocabulary file could not be fetched ({type(error).__name__}: {str(error)[:200]}). "
                "Fetch it where there is a network and point TIKTOKEN_CACHE_DIR at the folder."
            ) from error
        self.pieces: list[str | None] = []
        byte = []
        for number in range(self.encoding.n_vocab):
            try:
                piece = self.encoding.decode_single_token_bytes(number).decode()
            except KeyError:  # a gap in the numbering
                self.pieces.append(None)
                byte.append(False)
            except UnicodeDecodeError:
                self.pieces.append(None)
                byte.append(True)
            else:
                self.pieces.append(None if piece in self.encoding.special_tokens_set else piece)
                byte.append(False)
        self.is_byte = np.array(byte)
        self.unk_id = -1

    def encode(self, texts: pa.LargeStringArray) -> NDArray[np.int64]:
        """Ids of all texts, one after the other."""
        ids = self.encoding.encode_ordinary_batch(texts.to_pylist())
        return np.concatenate([np.empty(0, np.int64), *(np.array(document, np.int64) for document in ids)])


def _is_byte_piece(piece: str) -> bool:
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")


def open_encoder(name: str) -> Encoder:
    """Open `tiktoken:NAME`, a `tokenizer.json`, a `.model` file or a folder with one.

    Raises:
        TokenizerError: if it cannot be read, or its vocabulary cannot be fetched.
        MissingExtraError: if a package that it needs is not installed.
    """
    if name.startswith("tiktoken:"):
        return TiktokenEncoder(name.removeprefix("tiktoken:"))
    if Path(name).suffix == ".json":
        return HuggingFaceEncoder(name)
    return SentencePieceEncoder(name)
