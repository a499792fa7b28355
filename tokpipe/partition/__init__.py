"""Shards to ranks: which bytes each data-parallel rank reads, and in what order."""

from tokpipe.partition.checks import Fit, SourceTokens, fit_batch
from tokpipe.partition.lanes import num_samples, rank_positions, sample_tokens
from tokpipe.partition.order import ORDERS, Order
from tokpipe.partition.phases import LeftOut, Phase
from tokpipe.partition.plan import PartitionPlan, source_tokens

__all__ = [
    "ORDERS",
    "Fit",
    "LeftOut",
    "Order",
    "PartitionPlan",
    "Phase",
    "SourceTokens",
    "fit_batch",
    "num_samples",
    "rank_positions",
    "sample_tokens",
    "source_tokens",
]
