"""Text to ids: units, model, counts, training, report, export."""

from tokpipe.tokenizer.counts import WordCounter, merge_counts
from tokpipe.tokenizer.counts_file import CountsInfo, iter_counts, read_counts_info
from tokpipe.tokenizer.hashing import document_hashes
from tokpipe.tokenizer.model import Tokenizer
from tokpipe.tokenizer.self_check import self_check_rows
from tokpipe.tokenizer.train import TrainConfig, train_tokenizer

__all__ = [
    "CountsInfo",
    "Tokenizer",
    "TrainConfig",
    "WordCounter",
    "document_hashes",
    "iter_counts",
    "merge_counts",
    "read_counts_info",
    "self_check_rows",
    "train_tokenizer",
]
