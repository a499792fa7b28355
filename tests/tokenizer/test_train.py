"""Training from counts against SentencePiece's own training on the text, and what enters the model."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.json
import pytest
import sentencepiece as spm

from tokpipe.errors import TrainingError
from tokpipe.tokenizer import Tokenizer, TrainConfig, WordCounter, train_tokenizer
from tokpipe.tokenizer.normalization import required_characters
from tokpipe.tokenizer.train import CARD_NAME, MODEL_NAME, trainer_options, without_paths
from tokpipe.tokenizer.trainer_process import train

# Without weights counts are the text's own, which is what SentencePiece sees.
PLAIN = {"language_temperature": 1.0}


def pieces_of(model: bytes) -> list[tuple[str, float]]:
    processor = spm.SentencePieceProcessor(model_proto=model)
    return [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.vocab_size())]


def lines_of(texts: list[str]) -> Iterator[bytes]:
    """The text as SentencePiece reads it. A tab, which counts cannot carry, splits a line here as it splits a word there."""
    for text in texts:
        yield from (line.encode() for line in text.replace("\t", "\n").split("\n") if line)


def train_both(texts: list[str], config: TrainConfig, folder: Path) -> tuple[bytes, bytes]:
    with WordCounter("all") as counter:
        counter.add(pa.array(texts, pa.large_string()))
        counter.write(folder / "x.counts")
    train_tokenizer(folder / "x.counts", config, folder / "out")
    with trainer_options(config, max_sentence_length=1 << 30) as options:
        raw = without_paths(train(lines_of(texts), options), config)
    return (folder / "out" / MODEL_NAME).read_bytes(), raw


@pytest.mark.parametrize("normalization", ["hindi", "identity"])
@pytest.mark.parametrize("merge_punctuation", [False, True])
def test_counts_and_text_give_the_same_pieces(tmp_path, text_maker_session, normalization, merge_punctuation):
    texts = [
        *text_maker_session("hi", 60),
        *text_maker_session("en", 60),
        "  indented \u2581 \u2581mark",
        "ends in spaces   ",
        "a\rb",
    ]
    config = TrainConfig(vocab_size=900, normalization=normalization, merge_punctuation=merge_punctuation, **PLAIN)
    counted, raw = train_both(texts, config, tmp_path)
    assert pieces_of(counted) == pieces_of(raw)


@pytest.mark.parametrize("seed", [0, 1])
def test_counts_and_text_give_the_same_pieces_on_random_characters(tmp_path, seed):
    rng = random.Random(seed)
    codes = [
        *range(0x100),
        *range(0x0900, 0x0980),
        0x200C,
        0x200D,
        0x2028,
        0x2580,
        0x2581,
        0x3000,
        0xE000,
        0xFEFF,
        0xFFFD,
        0xFFFF,
    ]
    # SentencePiece strips carriage returns that end a line; reading a corpus leaves none.
    alphabet = [chr(code) for code in [*codes, 0x1F600, 0x10FFFF] if chr(code) not in "\r\t"]
    alphabet += [" "] * 60 + ["\n"] * 10 + ["a", "b", "ab"] * 10
    texts = ["".join(rng.choices(alphabet, k=rng.randint(0, 400))) for _ in range(300)]
    config = TrainConfig(vocab_size=1500, normalization=("hindi", "identity")[seed], merge_punctuation=seed == 1, **PLAIN)
    counted, raw = train_both(texts, config, tmp_path)
    assert pieces_of(counted) == pieces_of(raw)


def corpus_texts(folder: Path, *, megabytes: float) -> list[str]:
    """Documents of all files in turn, so that every source is there."""
    texts: list[str] = []
    for path in sorted(folder.glob("*.jsonl.zst")):
        with pa.CompressedInputStream(str(path), "zstd") as stream:
            table = pyarrow.json.read_json(stream, pyarrow.json.ReadOptions(block_size=1 << 26))
        share = 0
        for text in table["text"].to_pylist():
            share += len(text.encode())
            # Lines that hold U+2585 are dropped whole by SentencePiece; from counts only the words that hold it.
            if share < megabytes * 1e6 / 4 and "\u2585" not in text:
                texts.append(text)
    return texts


def test_counts_and_text_give_the_same_pieces_on_real_text(tmp_path, shared_corpus):
    texts = corpus_texts(shared_corpus, megabytes=3)
    counted, raw = train_both(texts, TrainConfig(vocab_size=8000, **PLAIN), tmp_path)
    assert pieces_of(counted) == pieces_of(raw)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_counts_and_text_give_the_same_pieces_on_100_megabytes(tmp_path, shared_corpus):
    texts = corpus_texts(shared_corpus, megabytes=170)
    assert sum(len(text.encode()) for text in texts) > 95e6
    counted, raw = train_both(texts, TrainConfig(**PLAIN), tmp_path)
    assert pieces_of(counted) == pieces_of(raw)


def test_equal_counts_give_equal_bytes_without_a_path(tmp_path, small_counts, small_model):
    config = TrainConfig(vocab_size=1500)
    train_tokenizer(small_counts, config, tmp_path / "elsewhere")
    for name in (MODEL_NAME, CARD_NAME):
        data = (tmp_path / "elsewhere" / name).read_bytes()
        assert data == (small_model / name).read_bytes()
        for path in (tmp_path, small_counts.parent, Path("/tmp/")):
            assert str(path).encode() not in data
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == [CARD_NAME, MODEL_NAME]


def test_model_has_the_stated_ids_and_every_devanagari_character(small_model):
    processor = spm.SentencePieceProcessor(model_file=str(small_model / MODEL_NAME))
    assert [processor.id_to_piece(i) for i in range(4)] == ["<unk>", "<s>", "</s>", "<pad>"]
    assert processor.vocab_size() == 1500 and processor.is_byte(4) and processor.is_byte(259)
    assert all(processor.piece_to_id(char) != 0 for char in required_characters("hindi"))
    digits = [processor.id_to_piece(i) for i in range(1500) if any(c.isdigit() for c in processor.id_to_piece(i))]
    assert all(len(piece) == 1 or piece.startswith("<0x") or piece == "▁" + piece[-1] for piece in digits)
    assert not any("\n" in processor.id_to_piece(i) for i in range(1500))


def test_card_says_what_was_counted_and_covered(small_model, small_counts):
    card = json.loads((small_model / CARD_NAME).read_text(encoding="utf-8"))
    assert card["covered_share"] == 1.0 and card["missing_characters"] == []
    assert card["words"] == card["distinct_words"] > 1000
    assert set(card["counts"]["totals"]) == {"en", "hi"}
    assert card["fingerprint"] == Tokenizer.load(small_model).fingerprint
    few = train_tokenizer(small_counts, TrainConfig(vocab_size=600, max_words=300), small_model.parent / "few")
    assert few["words"] == 300 and 0.3 < few["covered_share"] < 1


def test_vocabulary_too_large_says_the_largest_possible(tmp_path, small_counts):
    with pytest.raises(TrainingError, match=r"largest possible is [0-9,]+") as caught:
        train_tokenizer(small_counts, TrainConfig(vocab_size=500_000), tmp_path)
    assert not list(tmp_path.iterdir())
    largest = int(str(caught.value).split("largest possible is ")[1].split(".")[0].replace(",", ""))
    assert train_tokenizer(small_counts, TrainConfig(vocab_size=largest), tmp_path)["vocab_size"] == largest
    with pytest.raises(TrainingError, match="largest possible"):
        train_tokenizer(small_counts, TrainConfig(vocab_size=largest + 1), tmp_path)


def test_vocabulary_too_small_says_what_it_must_hold(tmp_path, small_counts):
    with pytest.raises(TrainingError, match=r"vocab_size 300 is too small: .* take ([0-9]+)"):
        train_tokenizer(small_counts, TrainConfig(vocab_size=300), tmp_path)


def test_weights_move_the_vocabulary(tmp_path, small_counts):
    def devanagari(share: float) -> int:
        weights = (("en", 1 - share), ("hi", share))
        train_tokenizer(small_counts, TrainConfig(vocab_size=1500, language_weights=weights), tmp_path / str(share))
        processor = spm.SentencePieceProcessor(model_file=str(tmp_path / str(share) / MODEL_NAME))
        return sum(any("ऀ" <= c <= "ॿ" for c in processor.id_to_piece(i)) for i in range(1500))

    assert devanagari(0.05) < devanagari(0.5) < devanagari(0.95)


def test_training_writes_nothing_on_stderr(tmp_path, small_counts, capfd):
    train_tokenizer(small_counts, TrainConfig(vocab_size=600), tmp_path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "options",
    [
        {"vocab_size": 0},
        {"normalization": "nfkc"},
        {"language_weights": (("hi", -1.0),)},
        {"language_weights": (("hi", float("nan")),)},
        {"language_weights": (("hi", 1.0), ("hi", 1.0))},
        {"language_temperature": -1.0},
        {"language_temperature": 1.0, "language_weights": (("hi", 1.0),)},
        {"max_words": 0},
        {"character_coverage": 0.0},
        {"character_coverage": 1.5},
    ],
)
def test_config_checks_itself(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        TrainConfig(**options)


def test_words_that_share_no_parts_are_trained_on_as_far_as_max_words_bounds(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("tokpipe.tokenizer.train.LEAN_FROM", 100)
    words = ["".join(letters) for letters in itertools.product("abcdef", repeat=4)]  # 1,296, each once, but for the last ones
    with WordCounter("en") as counter:
        counter.add(pa.array([" ".join([*words, *words[-50:]])], pa.large_string()))
        counter.write(tmp_path / "x.counts")
    caplog.set_level("INFO")
    train_tokenizer(tmp_path / "x.counts", TrainConfig(vocab_size=430, max_words=500, **PLAIN), tmp_path / "out")
    assert "cut into 500 distinct parts" in caplog.text and "the 400 most frequent" in caplog.text
