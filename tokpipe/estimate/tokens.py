"""Token budgets: how many tokens, how many bytes, how many steps.

Source: Hoffmann et al., "Training Compute-Optimal Large Language Models", arXiv:2203.15556 (about 20 tokens a parameter).
"""

from __future__ import annotations

CHINCHILLA_RATIO = 20.0
UINT16_VOCAB = 65_500
"""Vocabularies above this are stored as int32: the limit that the shard writer keeps."""


def chinchilla_tokens(num_params: float) -> float:
    """Compute-optimal number of training tokens.

    Example:
        `chinchilla_tokens(7e9) == 140e9`
    """
    return CHINCHILLA_RATIO * num_params


def token_bytes(vocab_size: int) -> int:
    """Bytes of one stored token id: 2 (uint16) or 4 (int32)."""
    return 2 if vocab_size <= UINT16_VOCAB else 4


def corpus_bytes(num_tokens: float, vocab_size: int) -> float:
    """Bytes of the tokenized corpus on disk, without the index.

    Example:
        `corpus_bytes(1e12, 32000) == 2e12`
    """
    return num_tokens * token_bytes(vocab_size)


def num_steps(num_tokens: float, tokens_per_step: int) -> tuple[int, int]:
    """Optimizer steps to see all tokens once: rounded to the nearest, and whole steps only.

    Example:
        `num_steps(1e12, 2048 * 2048) == (238_419, 238_418)`

    Raises:
        ValueError: if `tokens_per_step` is below 1.
    """
    if tokens_per_step < 1:
        raise ValueError(f"tokens per step must be at least 1, got {tokens_per_step}")
    return round(num_tokens / tokens_per_step), int(num_tokens // tokens_per_step)
