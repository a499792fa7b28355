"""Recomputation: drop activations after the forward pass and compute them again when the backward pass needs them.

    full        a block keeps its input, 2·s·b·h bytes in bf16, and runs forward once more: one more forward pass in all, about
                a third more compute (PyTorch stops each rerun early, at the last activation that backward needs)
    selective   only the attention core runs again. With unfused attention that drops the (s x s) scores, most of the bytes, for
                few FLOPs; the fused kernel stores no scores, so there it saves little

Source: Chen et al., arXiv:1604.06174; selective: Korthikanti et al., arXiv:2205.05198, section 5.
"""

from __future__ import annotations

from typing import cast

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, CheckpointWrapper, checkpoint_wrapper

from tokpipe.trainer.model import Block, Transformer

WRAPPER_PREFIX = "_checkpoint_wrapped_module."
"""What the wrapper puts into parameter names; `plain_name` takes it out."""


def apply_recompute(model: Transformer, kind: str) -> None:
    """Wrap every block (`full`), or its attention core (`selective`); `none` changes nothing."""
    if kind == "none":
        return
    for name, block in model.layers.items():
        if kind == "full":
            model.layers[name] = _recomputed(block)
        else:
            attention = cast(Block, block).attention
            attention.core = _recomputed(attention.core)  # type: ignore[assignment]


def bare_block(block: nn.Module) -> nn.Module:
    """The block inside its wrapper, or the block itself if nothing wraps it.

    What is compiled, so that recomputation stays outside: a compiled wrapper around a block cut by tensor parallel saves its
    device mesh as if it were a tensor, and raises (PyTorch 2.13).
    """
    return cast(nn.Module, block._checkpoint_wrapped_module) if isinstance(block, CheckpointWrapper) else block


def plain_name(name: str) -> str:
    """A parameter's name in the model without wrappers."""
    return name.replace(WRAPPER_PREFIX, "")


def _recomputed(module: nn.Module) -> nn.Module:
    # No dropout in the model: the random state need not be put back.
    return checkpoint_wrapper(module, checkpoint_impl=CheckpointImpl.NO_REENTRANT, preserve_rng_state=False)
