"""Text to ids: units, model, counts, training, report, export."""

from tokpipe.tokenizer.hashing import document_hashes
from tokpipe.tokenizer.model import Tokenizer
from tokpipe.tokenizer.self_check import self_check_rows

__all__ = ["Tokenizer", "document_hashes", "self_check_rows"]
