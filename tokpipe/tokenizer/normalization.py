"""The normalisation that is stored in the model, so that whoever loads it later gets the same one.

`hindi` folds the eleven precomposed nukta letters into base letter + U+093C. The two spellings are canonically equivalent
(Unicode's own NFC writes all but three of them apart), keyboards and sites produce both, and folding gives a word one spelling
and one row of ids. Nothing else changes: joiners (U+200C, U+200D), newlines, tabs and runs of spaces survive. `identity` changes
nothing at all.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from types import MappingProxyType

NUKTA = "\u093c"
NUKTA_LETTERS = (*map(chr, range(0x0958, 0x0960)), "\u0929", "\u0931", "\u0934")
NORMALIZATIONS = MappingProxyType(
    {
        "hindi": MappingProxyType({letter: unicodedata.normalize("NFD", letter) for letter in NUKTA_LETTERS}),
        "identity": MappingProxyType({}),
    }
)
"""Name -> (character -> what it becomes)."""

# ZWNJ and ZWJ steer how conjuncts are drawn; the rupee sign is not in the block.
JOINERS_AND_SIGNS = "\u200c\u200d\u20b9"


def required_characters(normalization: str) -> str:
    """Characters that every model must have as pieces: the Devanagari block (danda included), both joiners, the rupee sign.

    Letters that the normalisation folds away are left out: no text holds them once it is normalised.
    """
    folded = NORMALIZATIONS[normalization]
    block = [chr(code) for code in range(0x0900, 0x0980) if unicodedata.category(chr(code)) != "Cn"]
    return "".join(char for char in block if char not in folded) + JOINERS_AND_SIGNS


def write_rule_table(normalization: str, path: Path) -> None:
    """Write SentencePiece's `normalization_rule_tsv`: code points in hexadecimal, one rule a line."""
    lines = []
    for source, target in sorted(NORMALIZATIONS[normalization].items()):
        codes = [" ".join(f"{ord(char):X}" for char in text) for text in (source, target)]
        lines.append("\t".join(codes) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
