"""Floating-point work of a training token, and what share of a GPU's peak a measured speed is.

Model FLOPs count useful work only: 6 N for the matrices (2 forward, 4 backward) and 12 L h s for attention; what recomputation
repeats is not counted. Source: Narayanan et al., arXiv:2104.04473, section 5.1; "PaLM", arXiv:2204.02311, appendix B.
"""

from __future__ import annotations

FULL_RECOMPUTE = 1 / 3
"""One more forward pass over three (a forward and a backward of twice its work)."""
FULL_RECOMPUTE_EARLY_STOP = 24 / 87
"""As PyTorch does it: recomputing stops at the last tensor that backward needs. Counted: 111 matrix products against 87."""

DENSE_BF16_PEAK = {
    "B200": 2250e12,
    "GB200": 2500e12,
    "H200": 989e12,
    "H100 PCIE": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "V100": 125e12,
}
"""FLOP/s without sparsity, from the vendors' data sheets; the longest name that occurs in the device's name counts."""


def flops_per_token(num_params: float, *, num_layers: int, hidden_size: int, seq_len: int) -> float:
    """Model FLOPs to train on one token, 6 N + 12 L h s."""
    return 6 * num_params + 12 * num_layers * hidden_size * seq_len


def peak_flops(device_name: str) -> float | None:
    """Dense bf16 peak of a GPU in FLOP/s, or None if the name is unknown.

    Example:
        `peak_flops("NVIDIA H100 80GB HBM3") == 989e12`
    """
    upper = device_name.upper()
    known = [name for name in DENSE_BF16_PEAK if name in upper]
    return DENSE_BF16_PEAK[max(known, key=len)] if known else None


def mfu(tokens_per_second: float, *, flops_each: float, num_gpus: int, peak: float) -> float:
    """Model FLOPs utilisation: useful work per second over what all GPUs could do."""
    return tokens_per_second * flops_each / (num_gpus * peak)


def training_days(num_tokens: float, *, flops_each: float, num_gpus: int, peak: float, utilisation: float) -> float:
    """Days to train on `num_tokens` at a given utilisation."""
    return num_tokens * flops_each / (num_gpus * peak * utilisation) / 86_400
