"""Shards to ranks: which bytes each data-parallel rank reads, and in what order."""

from tokpipe.partition.checks import Fit, SourceTokens, fit_batch
from tokpipe.partition.copy import pull_dataset
from tokpipe.partition.held_out import PADDING, HeldOutPlan
from tokpipe.partition.lanes import num_samples, rank_positions, sample_tokens
from tokpipe.partition.order import ORDERS, Order
from tokpipe.partition.phases import LeftOut, Phase, make_phases
from tokpipe.partition.plan import PartitionPlan, source_tokens
from tokpipe.partition.shares import SourceShare, rank_share
from tokpipe.partition.stage import check_staged, phase_differences, read_staged, shards_of_ranks, stage_ranks
from tokpipe.partition.summary import PARTITION_NAME, PartitionSummary, plan_partition, save_partition, write_partition
from tokpipe.partition.token_space import Piece, TokenSpace

__all__ = [
    "ORDERS",
    "PADDING",
    "PARTITION_NAME",
    "Fit",
    "HeldOutPlan",
    "LeftOut",
    "Order",
    "PartitionPlan",
    "PartitionSummary",
    "Phase",
    "Piece",
    "SourceShare",
    "SourceTokens",
    "TokenSpace",
    "check_staged",
    "fit_batch",
    "make_phases",
    "num_samples",
    "phase_differences",
    "plan_partition",
    "pull_dataset",
    "rank_positions",
    "rank_share",
    "read_staged",
    "sample_tokens",
    "save_partition",
    "shards_of_ranks",
    "source_tokens",
    "stage_ranks",
    "write_partition",
]
