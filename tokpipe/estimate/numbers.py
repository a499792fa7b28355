"""How amounts are written: GB is 10^9 bytes, and digits are those people quote."""

from __future__ import annotations


def gigabytes(num_bytes: float) -> str:
    """GB with two decimals, three below 10 GB where the third says something.

    Example:
        `gigabytes(112e9) == "112.00"`, `gigabytes(1.75e9) == "1.75"`, `gigabytes(1.625e9) == "1.625"`
    """
    amount = num_bytes / 1e9
    if amount >= 10:
        return f"{amount:,.2f}"
    text = f"{amount:.3f}"
    return text.removesuffix("0")


def rough_gigabytes(num_bytes: float) -> str:
    """GB with one decimal, two below 10 GB.

    Example:
        `rough_gigabytes(30.601e9) == "30.6"`, `rough_gigabytes(3.6238e9) == "3.62"`
    """
    amount = num_bytes / 1e9
    return f"{amount:,.1f}" if amount >= 10 else f"{amount:.2f}"


def megabytes(num_bytes: float) -> str:
    """MB with one decimal."""
    return f"{num_bytes / 1e6:,.1f}"


def count(number: float) -> str:
    """A large count in the words of the trade: 140B, 1.0T, 700M.

    Example:
        `count(140e9) == "140B"`, `count(1e12) == "1.0T"`
    """
    for size, letter, digits in ((1e12, "T", 1), (1e9, "B", 0), (1e6, "M", 0)):
        if number >= size:
            scaled = number / size
            return f"{scaled:,.{digits if scaled >= 10 or digits else 1 if scaled % 1 else 0}f}{letter}"
    return f"{number:,.0f}"


def storage(num_bytes: float) -> str:
    """Bytes on disk: TB with one decimal, GB with two, MB with one."""
    if num_bytes >= 1e12:
        return f"{num_bytes / 1e12:,.1f} TB"
    return f"{num_bytes / 1e9:,.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"
