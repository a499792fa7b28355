"""Train a SentencePiece BPE model from word counts: every word of the corpus, in memory that does not grow with it.

SentencePiece reads `word <tab> count` rows from an iterator and writes the model to a buffer, so no path of this machine enters
it: equal counts and settings give equal bytes. Why these settings: `docs/tokenizer.md`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2

from tokpipe import __version__
from tokpipe.errors import TrainingError
from tokpipe.tokenizer.counts_file import CountsInfo, merged_info, read_counts_info
from tokpipe.tokenizer.normalization import NORMALIZATIONS, required_characters, write_rule_table
from tokpipe.tokenizer.trainer_process import TrainerKilledError, TrainerProcess, TrainerRefusedError
from tokpipe.tokenizer.vocabulary import read_vocabulary
from tokpipe.tokenizer.word_cuts import WordParts, cut_words, most_frequent_parts
from tokpipe.tokenizer.word_selection import SelectedWords, select_words

logger = logging.getLogger(__name__)

MODEL_NAME, CARD_NAME = "tokenizer.model", "card.json"
# Stored in the model, hence one number everywhere; the trainer uses threads only to normalise its input.
NUM_THREADS = 8
ROWS_AT_ONCE = 65_536
# Parts above which the trainer saves memory instead of time: below, it needs less than 0.6 GB either way.
LEAN_FROM = 1_000_000
# Real text has 0.4 parts a word. Where words share so few parts that there are more than this, the rarest are left out: it is
# parts that the trainer's memory is made of.
PARTS_PER_WORD = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """What decides the vocabulary, beside the counts."""

    vocab_size: int = 32_000
    """Pieces, the four special ones and the 256 bytes included."""
    normalization: str = "hindi"
    """`hindi` (nukta letters are written apart) or `identity`."""
    merge_punctuation: bool = False
    """Pieces may join letters and punctuation: fewer tokens, slower encoding."""
    language_weights: tuple[tuple[str, float], ...] = ()
    """(source, share of the bytes of text) for every source; empty balances Devanagari and Latin."""
    language_temperature: float = 0.0
    """Shares follow `bytes ** (1 / temperature)`: 1 leaves the text as it is, more evens sources out, 0 is off."""
    max_words: int = 2_000_000
    """The most frequent words are trained on; the trainer needs about 0.5 GB a million."""
    character_coverage: float = 0.99998
    """Share of the characters that become pieces by frequency; the rest is spelled in bytes."""

    def __post_init__(self) -> None:
        if not 1 <= self.vocab_size <= 2**31 - 1:
            raise ValueError(f"vocab_size must be positive, got {self.vocab_size}")
        if self.normalization not in NORMALIZATIONS:
            raise ValueError(f"normalization must be one of {', '.join(NORMALIZATIONS)}, got {self.normalization!r}")
        if any(not 0 <= share < math.inf for _, share in self.language_weights):
            raise ValueError(f"language_weights must be finite and not negative, got {self.language_weights}")
        if len({name for name, _ in self.language_weights}) != len(self.language_weights):
            raise ValueError(f"language_weights must name every source once, got {self.language_weights}")
        if not 0 <= self.language_temperature < math.inf:
            raise ValueError(f"language_temperature must be above 0 and finite, or 0 to be off, got {self.language_temperature}")
        if self.language_weights and self.language_temperature:
            raise ValueError("give language_weights or language_temperature, not both")
        if self.max_words < 1:
            raise ValueError(f"max_words must be positive, got {self.max_words}")
        if not 0 < self.character_coverage <= 1:
            raise ValueError(f"character_coverage must be in (0, 1], got {self.character_coverage}")


def sentencepiece_options(config: TrainConfig) -> dict[str, Any]:
    """SentencePiece's own options for a config, but for where text comes from, where the model goes and the rule table."""
    return {
        "model_type": "bpe",
        "vocab_size": config.vocab_size,
        "character_coverage": config.character_coverage,
        "required_chars": required_characters(config.normalization),
        "byte_fallback": True,
        "split_digits": True,
        "split_by_unicode_script": not config.merge_punctuation,
        "allow_whitespace_only_pieces": True,
        # The default rule, nmt_nfkc, turns ZWNJ and newlines into spaces: it respells Hindi and flattens code, so that
        # decode(encode(text)) != text. Collapsing runs of spaces and a space in front have to be off for the same reason.
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
        "unk_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "pad_id": 3,
        "num_threads": NUM_THREADS,
        # Errors arrive as exceptions; everything below is noise on stderr.
        "minloglevel": 2,
    }


def train_tokenizer(
    counts: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], config: TrainConfig, out_folder: str | os.PathLike[str]
) -> dict[str, Any]:
    """Train a model from a counts file, or from several together: `tokenizer.model` and `card.json`, each whole or not at all.

    Returns:
        The card: settings, what was counted, dropped and covered, and which required characters are missing (none).

    Raises:
        TrainingError: if the counts cannot be read, or weights or vocabulary size do not fit them.
    """
    start = time.monotonic()
    paths = [counts] if isinstance(counts, str | os.PathLike) else list(counts)
    with TrainerProcess() as trainer:
        words = select_words(
            paths, weights=config.language_weights, temperature=config.language_temperature, max_words=config.max_words
        )
        logger.info(
            "training on %s of %s distinct words, %.3f %% of the text",
            f"{len(words.counts):,}",
            f"{words.num_distinct:,}",
            100 * words.covered_share,
        )
        model = _train_model(trainer, words, config)
    card = _card(merged_info([read_counts_info(path) for path in paths]), config, words, model)
    out = Path(out_folder)
    out.mkdir(parents=True, exist_ok=True)
    _write(out / MODEL_NAME, model)
    _write(out / CARD_NAME, (json.dumps(card, indent=2, ensure_ascii=False) + "\n").encode())
    logger.info("trained %s pieces in %.0f s", f"{card['vocab_size']:,}", time.monotonic() - start)
    return card


def _train_model(trainer: TrainerProcess, words: SelectedWords, config: TrainConfig) -> bytes:
    """The bytes of a SentencePiece model trained on the words."""
    parts = cut_words(words, split_scripts=not config.merge_punctuation)
    logger.info("cut into %s distinct parts", f"{len(parts.counts):,}")
    limit = max(LEAN_FROM, round(PARTS_PER_WORD * config.max_words))
    if len(parts.counts) > limit:
        logger.info("training on the %s most frequent of them, which is what --max-words bounds", f"{limit:,}")
        parts = most_frequent_parts(parts, limit)
    # Every part was kept on purpose; SentencePiece takes no limit below 10.
    longest = max(10, int((parts.stops - parts.starts).max()) + 1)
    with trainer_options(config, input_format="tsv", max_sentence_length=longest) as options:
        try:
            model = trainer.train(_rows(parts), options, lean=len(parts.counts) > LEAN_FROM)
        except TrainerRefusedError as error:
            raise TrainingError(_explain(str(error), config)) from error
        except TrainerKilledError as error:
            raise TrainingError(
                f"SentencePiece's trainer was ended ({error}) while it trained on {len(parts.counts):,} distinct parts of words. "
                "It needs about 0.5 GB a million: lower --max-words or free memory if the system ran out of it."
            ) from error
    return without_paths(model, config)


@contextmanager
def trainer_options(config: TrainConfig, **options: Any) -> Iterator[dict[str, Any]]:
    """All that SentencePiece's trainer is told; its rule table lies in a temporary file for as long as the block lasts."""
    settings = sentencepiece_options(config) | options
    with tempfile.TemporaryDirectory(prefix="tokpipe-rules-") as folder:
        if NORMALIZATIONS[config.normalization]:
            rules = Path(folder) / "rules.tsv"
            write_rule_table(config.normalization, rules)
            settings["normalization_rule_tsv"] = str(rules)
        yield settings


def _rows(parts: WordParts) -> Iterator[bytes]:
    """`part <tab> count` lines, some thousands at a time."""
    for first in range(0, len(parts.counts), ROWS_AT_ONCE):
        some = slice(first, first + ROWS_AT_ONCE)
        starts, stops = parts.starts[some], parts.stops[some]
        low = int(starts.min())
        keys = parts.keys[low : int(stops.max())].tobytes()
        rows = zip((starts - low).tolist(), (stops - low).tolist(), parts.counts[some].tolist(), strict=True)
        yield b"".join([b"%b\t%d\n" % (keys[start:stop], count) for start, stop, count in rows])


def _explain(message: str, config: TrainConfig) -> str:
    too_large = re.search(r"Please set it to a value <= (\d+)", message)
    if too_large:
        return (
            f"vocab_size {config.vocab_size:,} is too large for this text: the largest possible is {int(too_large[1]):,}. "
            "Lower --vocab-size or add text."
        )
    too_small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_small:
        return (
            f"vocab_size {config.vocab_size:,} is too small: special pieces, bytes and characters take {int(too_small[1]):,}. "
            "Raise --vocab-size or lower --character-coverage."
        )
    return f"SentencePiece cannot train from these counts: {message}"


def without_paths(model: bytes, config: TrainConfig) -> bytes:
    """Drop the rule table's temporary path, which SentencePiece stores beside the compiled rules, and name the rules."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    proto.normalizer_spec.name = config.normalization
    result: bytes = proto.SerializeToString(deterministic=True)
    return result


def _card(info: CountsInfo, config: TrainConfig, words: SelectedWords, model: bytes) -> dict[str, Any]:
    processor = spm.SentencePieceProcessor(model_proto=model)
    missing = [c for c in required_characters(config.normalization) if processor.piece_to_id(c) == processor.unk_id()]
    if missing:
        logger.warning("not in the vocabulary, spelled in bytes: %s", " ".join(f"U+{ord(c):04X}" for c in missing))
    return {
        "vocab_size": processor.vocab_size(),
        "fingerprint": read_vocabulary(model, MODEL_NAME).fingerprint(),
        "settings": asdict(config),
        "words": len(words.counts),
        "distinct_words": words.num_distinct,
        "covered_share": words.covered_share,
        "missing_characters": missing,
        "counts": info.to_json(),
        "versions": {"tokpipe": __version__, "sentencepiece": spm.__version__},
    }


def _write(path: Path, data: bytes) -> None:
    side = path.with_name(f".{path.name}.{os.getpid()}.part")
    with side.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    side.replace(path)
