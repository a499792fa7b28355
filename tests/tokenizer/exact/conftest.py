"""Models of many kinds for the tests of the tokenizer: a few are trained, the others are those with their pieces changed."""

from __future__ import annotations

import collections
import io
import json
import random
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as pb2

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
NUKTA = {chr(c): unicodedata.normalize("NFD", chr(c)) for c in (0x929, 0x931, 0x934, *range(0x958, 0x960))}
SPECIAL = [
    "</s>",
    "<s>",
    "<unk>",
    "<pad>",
    "<0x0A>",
    "<0xE0>",
    "▁",
    "▁the",
    "<tag>",
    "\r\n",
    "\u200d",
    "\u200c",
    "\ufeff",
    "\x00",
]


def random_texts(rng: random.Random, count: int, words: list[str]) -> list[str]:
    """Short hostile texts: scripts, joiners, runs of spaces, marks of special tokens and real words, stuck together."""
    ranges = [(0x20, 0x7F), (0x900, 0x980), (0x00, 0x20), (0x80, 0x250), (0x2000, 0x2070), (0x400, 0x460), (0x4E00, 0x4E40)]
    ranges += [(0x1F600, 0x1F640), (0x2580, 0x2584), (0xFB00, 0xFB07), (0x958, 0x960), (0x10FFF0, 0x110000), (0xAC00, 0xAC20)]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 9)):
            pick = rng.random()
            if pick < 0.45:
                parts.append(rng.choice(words))
            elif pick < 0.6:
                parts.append(" " * rng.randrange(1, 4))
            elif pick < 0.7:
                parts.append(rng.choice(SPECIAL))
            elif pick < 0.75:
                parts.append(rng.choice("aक।\n.5 ▁é") * rng.randrange(1, 30))
            else:
                low, high = rng.choice(ranges)
                parts.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 6))))
        texts.append("".join(parts))
    return texts


@pytest.fixture(scope="session")
def real_texts(text_maker_session) -> list[str]:
    """About 5 MB of real documents in four kinds of text, or generated ones where there is no corpus."""
    corpus = Path(__file__).parents[4] / "shared" / "corpus"
    texts: list[str] = []
    if not corpus.is_dir():
        return text_maker_session("en", 2500) + text_maker_session("hi", 1500)
    for name, share in (("en", 2_300_000), ("hi", 2_000_000), ("mix", 500_000), ("other_devanagari", 300_000)):
        size = 0
        with pa.input_stream(str(corpus / f"{name}.jsonl.zst"), compression="zstd") as stream:
            for number, line in enumerate(io.TextIOWrapper(stream, encoding="utf-8")):
                if number % 7 or (text := json.loads(line)["text"]) == "":
                    continue
                text = text[:60_000]
                texts.append(text)
                size += len(text.encode())
                if size > share:
                    break
    return texts


@pytest.fixture(scope="session")
def real_words(real_texts: list[str]) -> list[str]:
    """Distinct words of the texts, with the space before them, in the order of their frequency."""
    counts: collections.Counter[str] = collections.Counter()
    for text in real_texts:
        counts.update(re.findall(r" *[^ \n]+", text))
    return [word for word, _ in counts.most_common() if "\t" not in word]


@pytest.fixture(scope="session")
def hostile_texts(real_words: list[str]) -> list[str]:
    """100,000 short hostile texts."""
    return random_texts(random.Random(20), 100_000, real_words[:30_000])


@pytest.fixture(scope="session")
def random_text_maker() -> Callable[..., list[str]]:
    """`random_texts`, for tests that may not import from conftest."""
    return random_texts


def train(folder: Path, texts: list[str], **options: Any) -> Any:
    """A SentencePiece model trained on the words of some texts, as a proto."""
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(re.findall(r" *[^ \n]+", text))
    lines = [f"{word}\t{count}" for word, count in counts.most_common() if "\t" not in word and len(word) < 200]
    source = folder / "words.tsv"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rules = folder / "rules.tsv"
    rules.write_text("".join(f"{ord(c):X}\t{' '.join(f'{ord(x):X}' for x in image)}\n" for c, image in NUKTA.items()))
    settings = {
        "model_type": "bpe", "vocab_size": 8000, "byte_fallback": True, "split_digits": True, "add_dummy_prefix": False,
        "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True, "character_coverage": 0.9995, "pad_id": 3,
        "normalization_rule_tsv": str(rules), "num_threads": 2, "minloglevel": 2, "hard_vocab_limit": False,
    }  # fmt: skip
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        input=str(source), input_format="tsv", model_writer=writer, **{**settings, **options}
    )
    proto = pb2.ModelProto()
    proto.ParseFromString(writer.getvalue())
    return proto


def changed(proto: Any, change: Any, *, keep: int | None = None) -> Any:
    """A copy of a model with its pieces changed in place; `keep` takes only so many of the merged pieces."""
    copy = pb2.ModelProto()
    copy.CopyFrom(proto)
    if keep is not None:
        merged = [p for p in copy.pieces if p.type == NORMAL and len(p.piece) > 1][:keep]
        others = [p for p in copy.pieces if p.type != NORMAL]
        single = [p for p in copy.pieces if p.type == NORMAL and len(p.piece) == 1]
        pieces = [pb2.ModelProto.SentencePiece.FromString(p.SerializeToString()) for p in others + merged + single]
        del copy.pieces[:]
        copy.pieces.extend(pieces)
    change(copy)
    return copy


def _shuffle(proto: Any) -> None:
    pieces = [pb2.ModelProto.SentencePiece.FromString(p.SerializeToString()) for p in proto.pieces]
    fixed = [p for p in pieces if p.type != NORMAL]
    normal = [p for p in pieces if p.type == NORMAL]
    random.Random(1).shuffle(normal)
    del proto.pieces[:]
    proto.pieces.extend(fixed + normal)


def _equal_scores(proto: Any) -> None:
    for piece in proto.pieces:
        piece.score = -float(int(-piece.score) // 97) if piece.type == NORMAL else piece.score


def _added_pieces_score_zero(proto: Any) -> None:
    for i, piece in enumerate(proto.pieces):
        if piece.type == NORMAL and i % 3 == 0:
            piece.score = 0.0


def _unused(proto: Any) -> None:
    for i, piece in enumerate(proto.pieces):
        if piece.type == NORMAL and (i % 5 == 0 or (len(piece.piece) == 1 and i % 2)):
            piece.type = UNUSED


def _dummy_prefix(proto: Any) -> None:
    proto.normalizer_spec.add_dummy_prefix = True


def _suffix(proto: Any) -> None:
    proto.normalizer_spec.add_dummy_prefix = True
    proto.trainer_spec.treat_whitespace_as_suffix = True
    for piece in proto.pieces:
        if piece.type == NORMAL and piece.piece.startswith("▁") and piece.piece.strip("▁"):
            piece.piece = piece.piece.strip("▁") + "▁"
    _drop_duplicates(proto)


def _drop_duplicates(proto: Any) -> None:
    seen: set[str] = set()
    pieces = []
    for piece in proto.pieces:
        if piece.piece not in seen:
            seen.add(piece.piece)
            pieces.append(pb2.ModelProto.SentencePiece.FromString(piece.SerializeToString()))
    del proto.pieces[:]
    proto.pieces.extend(pieces)


def _user_symbols(proto: Any) -> None:
    for symbol in ("<tag>", "ab", "abc", "।", "5", "▁the", "\n\n", "é", "कि"):
        proto.pieces.add(piece=symbol, score=0.0, type=USER_DEFINED)
    kept = [p for p in proto.pieces if p.type != NORMAL or p.piece not in ("ab", "abc", "।", "5", "▁the", "\n\n", "é", "कि")]
    pieces = [pb2.ModelProto.SentencePiece.FromString(p.SerializeToString()) for p in kept]
    del proto.pieces[:]
    proto.pieces.extend(pieces)


def _missing_characters(proto: Any) -> None:
    kept = [p for i, p in enumerate(proto.pieces) if p.type != NORMAL or len(p.piece) > 1 or i % 3]
    pieces = [pb2.ModelProto.SentencePiece.FromString(p.SerializeToString()) for p in kept if p.piece != "▁"]
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    _dummy_prefix(proto)


def _no_byte_fallback(proto: Any) -> None:
    proto.trainer_spec.byte_fallback = False
    pieces = [pb2.ModelProto.SentencePiece.FromString(p.SerializeToString()) for p in proto.pieces if p.type != BYTE]
    del proto.pieces[:]
    proto.pieces.extend(pieces)


def _many_pieces(proto: Any) -> None:
    for i in range(70_000 - len(proto.pieces)):
        proto.pieces.add(piece=f"q{i}zq{i}", score=-1e6 - i, type=NORMAL)


def _normalizer(name: str) -> Any:
    def change(proto: Any) -> None:
        made = pb2.ModelProto.FromString(sentencepiece.SentencePieceNormalizer(rule_name=name).serialized_model_proto())
        proto.normalizer_spec.precompiled_charsmap = made.normalizer_spec.precompiled_charsmap

    return change


def _own_rules(proto: Any) -> None:
    # Capital letters become small, and some images are longer, of another class, or hold spaces and unknown characters.
    rules = {chr(c): chr(c + 32) for c in range(ord("A"), ord("Z") + 1)}
    rules |= {
        "ß": "ss",
        "™": "tm",
        "½": "1 2",
        "é": "e\u0301",
        "₹": "रु",
        "\t": " ",
        "\u0958": "\u0915\u093c",
        "\U0001f600": ":)",
        "Ā": "\U00010300",
    }
    tsv = "".join(f"{ord(c):X}\t{' '.join(f'{ord(x):X}' for x in image)}\n" for c, image in rules.items())
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d"] * 20), model_writer=writer, vocab_size=20, hard_vocab_limit=False, minloglevel=2,
        normalization_rule_tsv=_written(tsv), model_type="char",
    )  # fmt: skip
    made = pb2.ModelProto.FromString(writer.getvalue())
    proto.normalizer_spec.precompiled_charsmap = made.normalizer_spec.precompiled_charsmap


_folder: list[Path] = []


def _written(text: str) -> str:
    path = _folder[0] / "own-rules.tsv"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _remove_spaces(proto: Any) -> None:
    proto.normalizer_spec.remove_extra_whitespaces = True
    _dummy_prefix(proto)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory, real_texts: list[str]) -> dict[str, bytes]:
    """Serialized models by name; `test_model.py` lists the names with the path each takes."""
    folder = tmp_path_factory.mktemp("zoo")
    _folder[:] = [folder]
    some = real_texts[::4]
    base = train(folder, real_texts, vocab_size=64_000)
    joined = train(
        folder, some, vocab_size=6000, split_by_unicode_script=False, split_digits=False, split_by_number=False,
        normalization_rule_name="identity", normalization_rule_tsv="",
    )  # fmt: skip
    across = train(folder, some, vocab_size=2000, split_by_whitespace=False)
    unigram = train(folder, some[::3], vocab_size=2000, model_type="unigram")
    models = {
        "64k": base,
        "1k": changed(base, lambda proto: None, keep=1000),
        "70k-int32": changed(base, _many_pieces, keep=3000),
        "joined-punctuation": joined,
        "dummy-prefix-unused": changed(base, lambda p: (_dummy_prefix(p), _unused(p)), keep=20_000),
        "suffix-shuffled": changed(base, lambda p: (_suffix(p), _shuffle(p)), keep=8000),
        "equal-scores-own-rules": changed(base, lambda p: (_equal_scores(p), _own_rules(p)), keep=16_000),
        "score-zero-joined": changed(joined, _added_pieces_score_zero),
        "user-symbols": changed(base, _user_symbols, keep=12_000),
        "user-symbols-unused-prefix": changed(joined, lambda p: (_user_symbols(p), _unused(p), _dummy_prefix(p))),
        "missing-characters": changed(base, _missing_characters, keep=10_000),
        "across-spaces": across,
        "no-byte-fallback": changed(base, _no_byte_fallback, keep=4000),
        "nfkc": changed(base, _normalizer("nmt_nfkc"), keep=4000),
        "removed-spaces": changed(base, _remove_spaces, keep=4000),
        "unigram": unigram,
    }
    return {name: proto.SerializeToString() for name, proto in models.items()}
