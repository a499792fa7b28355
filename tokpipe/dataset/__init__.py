"""Ranks to tensors: the samples of one data-parallel rank, in order, resumable on any number of ranks."""

from tokpipe.dataset.batch import IGNORED_LABEL, Batch
from tokpipe.dataset.loader import TokenLoader
from tokpipe.dataset.replicas import check_replicas
from tokpipe.dataset.show import SamplePiece, sample_pieces
from tokpipe.dataset.token_dataset import TokenDataset

__all__ = ["IGNORED_LABEL", "Batch", "SamplePiece", "TokenDataset", "TokenLoader", "check_replicas", "sample_pieces"]
