"""What stands around each document: the tokenizer's `</s>` after it, and `<s>` before it where it is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from tokpipe.build.config import BuildConfig
from tokpipe.errors import TokenizerError
from tokpipe.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The ids put around each document."""

    eos_id: int
    bos_id: int | None


def document_ends(tokenizer: Tokenizer, config: BuildConfig) -> Ends:
    """The ids around each document.

    Raises:
        TokenizerError: if the model has no `</s>` (or `<s>`, where it is asked for) and no id was given for it.
    """
    eos_id = config.eos_id if config.eos_id >= 0 else tokenizer.eos_id
    if eos_id is None:
        raise TokenizerError(f"{tokenizer.name}: has no </s> to end documents with. Say which id does: --eos-id N.")
    if eos_id >= tokenizer.vocab_size:
        raise TokenizerError(f"{tokenizer.name}: --eos-id {eos_id} is not one of its {tokenizer.vocab_size:,} ids (0 and up).")
    if config.prepend_bos and tokenizer.bos_id is None:
        raise TokenizerError(f"{tokenizer.name}: has no <s>, so --prepend-bos cannot be done. Leave it out.")
    return Ends(eos_id=eos_id, bos_id=tokenizer.bos_id if config.prepend_bos else None)
