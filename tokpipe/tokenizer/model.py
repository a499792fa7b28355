"""`Tokenizer`: text to ids, exactly as SentencePiece gives them, and back."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import sentencepiece
from numpy.typing import NDArray

from tokpipe.errors import TokenizerError
from tokpipe.tokenizer.cuts import cut_obstacle
from tokpipe.tokenizer.hashing import column_bytes
from tokpipe.tokenizer.normalizer import one_character_rules
from tokpipe.tokenizer.self_check import check_documents
from tokpipe.tokenizer.unit_table import USED
from tokpipe.tokenizer.units import UnitEncoder
from tokpipe.tokenizer.vocabulary import Vocabulary, read_vocabulary
from tokpipe.tokenizer.warm import MAX_UNITS, frequent_words, read_warm_units, write_warm_units

logger = logging.getLogger(__name__)

MAX_UINT16_VOCAB = 65_500
PLAIN_BATCH_BYTES = 4 << 20
BUILD_CAPACITY = 1 << 21
MODEL_NAME = "tokenizer.model"


class Tokenizer:
    """A loaded SentencePiece model. Not safe to share between threads; cheap to load in every process.

    What the fast path needs is laid out by the first `encode_batch`, which also logs the path that it takes.
    """

    def __init__(self, model_bytes: bytes, name: str) -> None:
        """Take a serialized model; `name` stands for it in errors and log lines."""
        self.name = name
        self.vocabulary: Vocabulary = read_vocabulary(model_bytes, name)
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
        except (RuntimeError, ValueError) as error:
            raise TokenizerError(f"{name}: SentencePiece refuses the model: {error}") from error
        self.fingerprint: str = self.vocabulary.fingerprint()
        """Hexadecimal, over all that decides the ids."""
        self._model_bytes = model_bytes
        self._rules = one_character_rules(self.vocabulary.charsmap)
        self._folder: Path | None = None

    @functools.cached_property
    def _fast_path(self) -> tuple[UnitEncoder | None, str]:
        """The unit encoder, None where the model does not allow one, and a note on it.

        Laid out when first needed: whoever only asks for the fingerprint or an id should not wait for it.
        """
        obstacle = cut_obstacle(self.vocabulary, self._rules)
        units = None if obstacle or self._rules is None else UnitEncoder(self._model_bytes, self.vocabulary, self._rules)
        note = f"plain path: {obstacle}" if obstacle else "fast path: safe cuts"
        if units is not None and self._folder is not None:
            table = read_warm_units(self._folder, self.fingerprint)
            if table is not None:
                units.use_warm_table(table)
                note += f", {table.counters[USED]:,} units known from the start"
        # The plain path is worth a line to everybody: it is many times slower. The fast one is what people expect.
        logger.log(logging.INFO if obstacle else logging.DEBUG, "%s: %s", self.name, note)
        return units, note

    @property
    def _units(self) -> UnitEncoder | None:
        return self._fast_path[0]

    @property
    def path_note(self) -> str:
        """Which path `encode_batch` takes, and why."""
        return self._fast_path[1]

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Tokenizer:
        """Open a `.model` file, or a folder that holds `tokenizer.model`.

        Raises:
            TokenizerError: if there is no such file or it is not a SentencePiece model.
        """
        file = Path(path)
        file = file / MODEL_NAME if file.is_dir() else file
        try:
            model_bytes = file.read_bytes()
        except OSError as error:
            raise TokenizerError(
                f"{file}: cannot read the tokenizer: {error.strerror}. Give a .model file or its folder"
            ) from error
        tokenizer = cls(model_bytes, str(file))
        tokenizer._folder = file.parent
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self.vocabulary.pieces)

    @property
    def dtype(self) -> Literal["uint16", "int32"]:
        """How ids are stored: two bytes up to 65,500 pieces, else four."""
        return "uint16" if self.vocab_size <= MAX_UINT16_VOCAB else "int32"

    @property
    def eos_id(self) -> int | None:
        """The id of `</s>`, or None if the model has none."""
        return None if (i := self._processor.eos_id()) < 0 else int(i)

    @property
    def bos_id(self) -> int | None:
        """The id of `<s>`, or None if the model has none."""
        return None if (i := self._processor.bos_id()) < 0 else int(i)

    @property
    def pad_id(self) -> int | None:
        """The id of `<pad>`, or None if the model has none."""
        return None if (i := self._processor.pad_id()) < 0 else int(i)

    @property
    def unk_id(self) -> int | None:
        """The id of `<unk>`, or None if the model has none."""
        return None if (i := self._processor.unk_id()) < 0 else int(i)

    def id_to_piece(self, token_id: int) -> str:
        """The piece of an id, spaces as U+2581."""
        return self.vocabulary.pieces[token_id]

    def encode(self, text: str) -> list[int]:
        """One text by SentencePiece itself, without end marks. For more than a few texts use `encode_batch`."""
        ids: list[int] = self._processor.encode(text)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; control ids such as `</s>` give nothing."""
        text: str = self._processor.decode([int(i) for i in ids])
        return text

    def encode_batch(
        self, texts: pa.LargeStringArray, *, bos_id: int | None = None, eos_id: int | None = None
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """All documents of a column, one after the other.

        Every document's ids equal `encode(document)`, with `bos_id` before and `eos_id` after it where given.
        Returns ids, (num_tokens,) of `dtype`, and offsets, (num_documents + 1,) int64.

        Raises:
            ValueError: if the column holds nulls or is not a `large_string` array.
        """
        data, starts = column_bytes(texts)
        if self._units is not None:
            return self._units.encode(data, starts, self.dtype, before=bos_id, after=eos_id)
        before = [] if bos_id is None else [bos_id]
        after = [] if eos_id is None else [eos_id]
        return self._encode_plainly(texts, starts, before, after)

    def _encode_plainly(
        self, texts: pa.LargeStringArray, starts: NDArray[np.int64], before: list[int], after: list[int]
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Every document by SentencePiece, a few megabytes at a time."""
        parts: list[NDArray[Any]] = []
        offsets = np.zeros(len(texts) + 1, np.int64)
        row = 0
        while row < len(texts):
            stop = max(row + 1, int(np.searchsorted(starts, starts[row] + PLAIN_BATCH_BYTES, "right")) - 1)
            for document, ids in enumerate(self._processor.encode(texts[row:stop].to_pylist()), row):
                parts.append(np.array(before + ids + after, self.dtype))
                offsets[document + 1] = offsets[document] + len(parts[-1])
            row = stop
        return (np.concatenate(parts) if parts else np.empty(0, self.dtype)), offsets

    def self_check(
        self,
        texts: pa.LargeStringArray,
        ids: NDArray[Any],
        offsets: NDArray[np.int64],
        rows: NDArray[np.int64],
        *,
        bos_id: int | None = None,
        eos_id: int | None = None,
        place: Callable[[int], str] = "document {} of the batch".format,
    ) -> int:
        """Compare `rows` of what `encode_batch` returned with SentencePiece; returns the bytes of text compared.

        `place` turns a row into words (file and position) for the error; see `self_check_rows` for choosing rows.

        Raises:
            SelfCheckError: if a document's ids differ; shows both encodings around the first difference.
        """
        ends = ([] if bos_id is None else [bos_id], [] if eos_id is None else [eos_id])
        return check_documents(self._processor, texts, ids, offsets, rows, ends=ends, place=place)

    def build_warm_units(
        self, counts_path: str | PathLike[str], out_folder: str | PathLike[str], *, max_units: int = MAX_UNITS
    ) -> int:
        """Encode the units of the most frequent counted words once and keep them in `out_folder`, beside the model.

        `Tokenizer.load` of that folder maps them. Returns the number of units kept: 0 for a model on the plain path.

        Raises:
            ValueError: if `max_units` is not in [1, 500,000].
            TrainingError: if `counts_path` is no word counts file.
        """
        if not 1 <= max_units <= 500_000:
            raise ValueError(f"max_units must be in [1, 500,000], got {max_units:,}")
        if self._units is None or self._rules is None:
            logger.info("%s: no warm units (%s)", self.name, self.path_note)
            return 0
        units = UnitEncoder(self._model_bytes, self.vocabulary, self._rules, capacity=BUILD_CAPACITY, virtual_spaces=False)
        for words in frequent_words(Path(counts_path)):
            units.encode(*column_bytes(words), self.dtype, before=None, after=None)
            if units.own_table.counters[USED] >= max_units:
                break
        return write_warm_units(Path(out_folder), units.own_table, self.fingerprint)
