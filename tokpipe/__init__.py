"""tokpipe: from a folder of raw text to the gradient.

`TokenDataset` and `TokenLoader` are imported on first use, so that `import tokpipe` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokpipe.dataset import TokenDataset, TokenLoader

__version__ = "0.1.0"
__all__ = ["TokenDataset", "TokenLoader", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("TokenDataset", "TokenLoader"):
        from tokpipe import dataset

        return getattr(dataset, name)
    raise AttributeError(f"module 'tokpipe' has no attribute {name!r}")
