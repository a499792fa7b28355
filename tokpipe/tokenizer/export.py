"""Export a model as Hugging Face `tokenizer.json` and `tokenizer_config.json`, equal to SentencePiece id for id.

A SentencePiece BPE model stores pieces with scores; Hugging Face wants the merges. A piece can come from any two pieces that
spell it, and SentencePiece merges the adjacent pair whose result has the best score: so every split of every piece is a merge, in
the order of the result's score. What cannot be said in that form is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tokpipe.errors import TokenizerError
from tokpipe.tokenizer.model import Tokenizer
from tokpipe.tokenizer.normalizer import one_character_rules
from tokpipe.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, SPACE_MARK, UNKNOWN, USER_DEFINED, Vocabulary

TOKENIZER_NAME, CONFIG_NAME = "tokenizer.json", "tokenizer_config.json"
# transformers writes this number for "no limit".
NO_LIMIT = int(1e30)


def export_hugging_face(model: str | os.PathLike[str], out_folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write `tokenizer.json` and `tokenizer_config.json` for a model file or its folder; returns their paths.

    Ids equal SentencePiece's for every text when the reader does not look for special tokens in it: with the package `tokenizers`
    set `encode_special_tokens = True` (the JSON cannot store it); with `transformers`, `split_special_tokens=True`, which
    `tokenizer_config.json` holds.

    Raises:
        TokenizerError: if the model cannot be read, or Hugging Face's format cannot express it; says why.
    """
    tokenizer = Tokenizer.load(model)
    vocabulary = tokenizer.vocabulary
    rules = one_character_rules(vocabulary.charsmap)
    obstacle = "its normaliser has rules for more than one character" if rules is None else _obstacle(vocabulary, rules)
    if obstacle or rules is None:
        raise TokenizerError(f"{tokenizer.name}: cannot be exported exactly: {obstacle}. Use the .model file itself.")
    out = Path(out_folder)
    out.mkdir(parents=True, exist_ok=True)
    paths = out / TOKENIZER_NAME, out / CONFIG_NAME
    for path, data in zip(paths, (_tokenizer(vocabulary, rules), _config(tokenizer)), strict=True):
        side = path.with_name(f".{path.name}.{os.getpid()}.part")
        side.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        side.replace(path)
    return paths


def _obstacle(vocabulary: Vocabulary, rules: Mapping[str, str]) -> str | None:
    """Why the format cannot express a model, or None."""
    if vocabulary.model_type != "bpe":
        return f"it is a {vocabulary.model_type} model, not BPE"
    if any(char in rules for image in rules.values() for char in image):
        return "its normaliser's rules act on one another's results"
    if not vocabulary.byte_fallback:
        return "it has no byte fallback"
    settings = ("add_dummy_prefix", "space_as_suffix", "remove_extra_whitespaces")
    wrong = [name for name in settings if getattr(vocabulary, name)]
    if wrong or not vocabulary.escape_whitespaces:
        return f"{wrong[0] if wrong else 'escape_whitespaces=False'} is not supported"
    if not set(vocabulary.types.tolist()) <= {NORMAL, UNKNOWN, CONTROL, BYTE}:
        kind = "user-defined" if USER_DEFINED in vocabulary.types else "unused"
        return f"it has {kind} pieces"
    return _tie(vocabulary) or _unspelled(vocabulary)


def _tie(vocabulary: Vocabulary) -> str | None:
    """Of pieces with one score SentencePiece takes the leftmost in the text; a list of merges always prefers one of them."""
    seen: dict[float, str] = {}
    for piece, score, kind in zip(vocabulary.pieces, vocabulary.scores.tolist(), vocabulary.types, strict=True):
        if kind == NORMAL and len(piece) > 1:
            if score in seen:
                return f"pieces {seen[score]!r} and {piece!r} have the same score"
            seen[score] = piece
    return None


def _unspelled(vocabulary: Vocabulary) -> str | None:
    """SentencePiece merges characters that are no pieces themselves; a merge of Hugging Face takes two pieces."""
    pieces = [piece for piece, kind in zip(vocabulary.pieces, vocabulary.types, strict=True) if kind == NORMAL]
    single = {piece for piece in pieces if len(piece) == 1}
    for piece in pieces:
        if "\0" in piece:
            return f"the piece {piece!r} holds the null character, which SentencePiece treats apart"
        if missing := set(piece) - single:
            return f"the piece {piece!r} holds {min(missing)!r}, which is no piece itself"
    return None


def merge_list(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Every pair of pieces that spells a piece, best score first; pairs of one piece by the length of their left half."""
    ids = {piece: number for number, piece in enumerate(vocabulary.pieces) if vocabulary.types[number] == NORMAL}
    order = np.argsort(-vocabulary.scores, kind="stable")
    merges = []
    for number in order.tolist():
        piece = vocabulary.pieces[number]
        if vocabulary.types[number] != NORMAL:
            continue
        splits = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        merges += [(left, right) for left, right in splits if left in ids and right in ids]
    return merges


def _tokenizer(vocabulary: Vocabulary, rules: Mapping[str, str]) -> dict[str, Any]:
    replaced = [*sorted(rules.items()), (" ", SPACE_MARK)]
    special = [number for number, kind in enumerate(vocabulary.types) if kind in (UNKNOWN, CONTROL)]
    unknown = [vocabulary.pieces[number] for number in special if vocabulary.types[number] == UNKNOWN]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": vocabulary.pieces[number],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number in special
        ],
        "normalizer": {"type": "Sequence", "normalizers": [_replace(before, after) for before, after in replaced]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [_replace(SPACE_MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown[0],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: number for number, piece in enumerate(vocabulary.pieces)},
            "merges": merge_list(vocabulary),
        },
    }


def _replace(before: str, after: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": before}, "content": after}


def _config(tokenizer: Tokenizer) -> dict[str, Any]:
    special = {"unk": tokenizer.unk_id, "bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id}
    return {
        # LlamaTokenizer would load as well, but transformers 5 builds its own normaliser for it, without the nukta rules.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": NO_LIMIT,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "legacy": False,
        "add_bos_token": False,
        "add_eos_token": False,
        "split_special_tokens": True,
    } | {f"{name}_token": tokenizer.id_to_piece(number) for name, number in special.items() if number is not None}
