"""From a counts file to the words a model is trained on: weights for languages, the most frequent words, whole numbers."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokpipe.errors import TrainingError
from tokpipe.tokenizer.counts import merged_counts
from tokpipe.tokenizer.counts_file import SCRIPTS, CountsInfo
from tokpipe.tokenizer.jit import kernel
from tokpipe.tokenizer.word_kernels import word_scripts
from tokpipe.tokenizer.word_order import compare_words, take_words

logger = logging.getLogger(__name__)

# A script below this share of the text is noise (a few foreign words), not a language to give half of the vocabulary.
MIN_BALANCED_SHARE = 0.001
# Weighted counts are scaled until the rarest word has this much, so that rounding moves none by more than 1 part in 32 ...
SMALLEST_COUNT = 16
# ... but the sum stays below this: it was tried up to here, and the trainer counts pairs in 64 bits.
LARGEST_SUM = 1e16


@dataclass(frozen=True, slots=True)
class SelectedWords:
    """The words to train on, sorted by their bytes: `keys[starts[w] : starts[w + 1]]` occurs `counts[w]` (weighted) times."""

    keys: NDArray[np.uint8]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    covered_share: float
    """Part of the counted text's bytes (unweighted) that these words make up."""
    num_distinct: int
    """Distinct words in the counts file."""


def weight_factors(info: CountsInfo, weights: tuple[tuple[str, float], ...], temperature: float) -> NDArray[np.float64]:
    """How much one occurrence counts, by source and script: (num_sources, num_scripts).

    With `weights`, every source makes up its share of the bytes of text. With a temperature, shares follow
    `bytes ** (1 / temperature)` (1 leaves the text as it is). With neither, Devanagari and Latin words make up equal bytes.

    Raises:
        TrainingError: if a weight names no source, a source has no weight, all weights are 0, or the temperature is so low that
            the shares are not numbers.
    """
    factors = np.ones((len(info.sources), len(SCRIPTS)))
    if temperature == 1.0:
        return factors  # the text as it is, to the last digit
    if not weights and temperature == 0.0:
        factors *= _script_factors(info)
        return factors
    num_bytes = np.array([totals.text_bytes for totals in info.totals.values()], np.float64)
    shares = _tempered_shares(num_bytes, temperature) if temperature else _named_shares(info, weights)
    wrong = [name for name, share, size in zip(info.sources, shares, num_bytes, strict=True) if share and not size]
    if wrong:
        raise TrainingError(f"source {wrong[0]} has a language weight but no text. Leave it out or set it to 0.")
    shares = shares / shares.sum()
    per_byte = np.divide(shares * num_bytes.sum(), num_bytes, out=np.zeros_like(num_bytes), where=num_bytes > 0)
    factors *= per_byte[:, None]
    return factors


def _tempered_shares(num_bytes: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        shares = num_bytes ** (1 / temperature)
    if not np.isfinite(shares.sum()):
        raise TrainingError(
            f"language temperature {temperature:g} is too low: {num_bytes.max():,.0f} bytes to the power of {1 / temperature:g} "
            "is no number. Take 1 to leave the text as it is, more to even sources out."
        )
    return shares


def _named_shares(info: CountsInfo, weights: tuple[tuple[str, float], ...]) -> NDArray[np.float64]:
    named = dict(weights)
    unknown, missing = sorted(set(named) - set(info.sources)), sorted(set(info.sources) - set(named))
    if unknown or missing:
        raise TrainingError(
            f"language weights must name every source once; the text has {', '.join(info.sources)}; "
            f"unknown: {', '.join(unknown) or 'none'}; without a weight: {', '.join(missing) or 'none'} (0 leaves a source out)."
        )
    shares = np.array([named[name] for name in info.sources])
    if not shares.sum() > 0:
        raise TrainingError("all language weights are 0: nothing is left to train on")
    return shares


def _script_factors(info: CountsInfo) -> NDArray[np.float64]:
    sizes = {name: sum(totals.script_bytes[name] for totals in info.totals.values()) for name in SCRIPTS}
    both = sizes["latin"] + sizes["devanagari"]
    factors = np.ones(len(SCRIPTS))
    if min(sizes["latin"], sizes["devanagari"]) < MIN_BALANCED_SHARE * both or not both:
        logger.info(
            "scripts are not balanced: %s bytes Devanagari, %s Latin", *(f"{sizes[s]:,}" for s in ("devanagari", "latin"))
        )
        return factors
    for name in ("latin", "devanagari"):
        factors[SCRIPTS.index(name)] = both / 2 / sizes[name]
    return factors


@kernel
def _fold_sources(
    keys: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sources: NDArray[np.uint16],
    counts: NDArray[np.int64],
    scripts: NDArray[np.uint8],
    factors: NDArray[np.float64],
    rows: NDArray[np.int64],
    weighted: NDArray[np.float64],
    plain: NDArray[np.int64],
) -> int:
    """One entry per word from rows per (word, source): its first row, weighted count and plain count. Returns how many words."""
    w = -1
    for r in range(len(counts)):
        if r == 0 or compare_words(keys, starts[r - 1], starts[r], keys, starts[r], starts[r + 1]) != 0:
            w += 1
            rows[w], weighted[w], plain[w] = r, 0.0, 0
        weighted[w] += counts[r] * factors[sources[r], scripts[r]]
        plain[w] += counts[r]
    return w + 1


class _TopWords:
    """The most frequent words seen so far; ties go to the word that sorts first. Holds at most twice the limit."""

    def __init__(self, limit: int):
        self.limit = limit
        self.words: list[tuple[NDArray[np.uint8], NDArray[np.int64]]] = []
        self.weighted: list[NDArray[np.float64]] = []
        self.plain: list[NDArray[np.int64]] = []
        self.num_words = self.num_distinct = 0
        self.last = b""

    def add(
        self, keys: NDArray[np.uint8], starts: NDArray[np.int64], weighted: NDArray[np.float64], plain: NDArray[np.int64]
    ) -> None:
        """Add words that sort after those before; the first may be the last one again, when its rows lie in two blocks."""
        if self.num_words and keys[: starts[1]].tobytes() == self.last:
            self.weighted[-1][-1] += weighted[0]
            self.plain[-1][-1] += plain[0]
            keys, starts, weighted, plain = keys[starts[1] :], starts[1:] - starts[1], weighted[1:], plain[1:]
        if not len(plain):
            return
        self.last = keys[starts[-2] :].tobytes()
        self.words.append((keys, starts))
        self.weighted.append(weighted)
        self.plain.append(plain)
        self.num_words += len(plain)
        self.num_distinct += len(plain)
        if self.num_words > 2 * self.limit:
            self.prune(keep_last=True)

    def prune(self, *, keep_last: bool) -> None:
        """Drop all but the most frequent; the last word may still grow and is kept on request."""
        keys = np.concatenate([k for k, _ in self.words])
        lengths = np.concatenate([np.diff(s) for _, s in self.words])
        starts = np.concatenate([[0], np.cumsum(lengths)])
        weighted, plain = np.concatenate(self.weighted), np.concatenate(self.plain)
        kept = np.flatnonzero(weighted > 0)
        if len(kept) > self.limit:
            kept = np.sort(np.argsort(-weighted, kind="stable")[: self.limit])
        if keep_last and (not len(kept) or kept[-1] != len(plain) - 1):
            kept = np.append(kept, len(plain) - 1)
        self.words = [take_words(keys, starts, kept)]
        self.weighted, self.plain = [weighted[kept]], [plain[kept]]
        self.num_words = len(kept)


def select_words(
    counts: Sequence[str | os.PathLike[str]], *, weights: tuple[tuple[str, float], ...], temperature: float, max_words: int
) -> SelectedWords:
    """The `max_words` most frequent words of some counts files together, weighted, with counts as whole numbers of at least 1.

    Memory is about 80 bytes for each of `max_words`, whatever the files' size.

    Raises:
        TrainingError: if the files hold no words or the weights do not fit their sources.
    """
    info, blocks = merged_counts(counts)
    factors = weight_factors(info, weights, temperature)
    top = _TopWords(max_words)
    for block in blocks:
        scripts = word_scripts(block.keys, block.starts)
        rows, weighted, plain = np.empty(len(block), np.int64), np.empty(len(block), np.float64), np.empty(len(block), np.int64)
        counted = (block.keys, block.starts, block.sources, block.counts)
        n = _fold_sources(*counted, scripts, factors, rows, weighted, plain)
        keys, starts = take_words(block.keys, block.starts, rows[:n])
        top.add(keys, starts, weighted[:n], plain[:n])
    if top.num_words:
        top.prune(keep_last=False)
    if not top.num_words:
        raise TrainingError(
            f"{', '.join(map(str, counts))}: no words to train on. Was the text empty, or every source weighted 0?"
        )
    (keys, starts), weighted, plain = top.words[0], top.weighted[0], top.plain[0]
    kept_bytes = sum(sum(totals.script_bytes.values()) for totals in info.totals.values())
    covered = float((plain * np.diff(starts)).sum()) / kept_bytes
    return SelectedWords(keys, starts, whole_counts(weighted), covered, top.num_distinct)


def whole_counts(weighted: NDArray[np.float64]) -> NDArray[np.int64]:
    """Weighted counts as whole numbers of at least 1. Counts that are whole already stay as they are.

    Example:
        whole_counts([0.5, 3.0]) -> [16, 96]
    """
    if (weighted == np.rint(weighted)).all():
        return weighted.astype(np.int64)
    scale = min(max(1.0, SMALLEST_COUNT / float(weighted.min())), LARGEST_SUM / float(weighted.sum()))
    return np.maximum(np.rint(weighted * scale), 1).astype(np.int64)
