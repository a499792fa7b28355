"""Validation loss per source: one pass over held-out documents, the same figure on every layout."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path

from torch.distributed.device_mesh import DeviceMesh

from tokpipe.dataset import TokenDataset, TokenLoader
from tokpipe.errors import PartitionError
from tokpipe.shards import read_manifest
from tokpipe.trainer.config import DataConfig
from tokpipe.trainer.data import as_step_batch
from tokpipe.trainer.step import EvalResult, StepBatch

logger = logging.getLogger(__name__)

EvalLoss = Callable[[StepBatch], EvalResult]
Batches = Callable[[], Iterable[StepBatch]]


def held_out_batches(config: DataConfig, *, mesh: DeviceMesh | None, micro_batch_size: int) -> dict[str, Batches]:
    """Per source, a function that starts a pass over its held-out samples.

    Sources without held-out documents, or with less than one sample of them, are named in the log and left out.
    """
    manifest = read_manifest(Path(config.path))
    found: dict[str, Batches] = {}
    for source in manifest.sources:
        try:
            dataset = TokenDataset(
                config.path,
                seq_len=config.seq_len,
                global_batch_size=config.global_batch_size,
                weights={source: 1.0},
                held_out=True,
                documents=config.document_mask,
                mask_document_starts=config.document_mask,
                mesh=mesh,
            )
        except PartitionError as error:
            logger.info("no validation of source %s: %s", source, error)
            continue
        found[source] = partial(_step_batches, TokenLoader(dataset, micro_batch_size))
    return found


def _step_batches(loader: TokenLoader) -> Iterator[StepBatch]:
    return map(as_step_batch, loader.steps())


def validate(eval_loss: EvalLoss, sources: Mapping[str, Batches], *, max_batches: int = 0) -> dict[str, float]:
    """Mean loss in nats per token of each source, and of `all` tokens pooled; empty without sources. Collective.

    Args:
        eval_loss: `ParallelModel.eval_loss`.
        sources: From `held_out_batches`.
        max_batches: Per source; 0 takes all.
    """
    losses: dict[str, float] = {}
    total, tokens = 0.0, 0
    for name, batches in sources.items():
        results = [eval_loss(batch) for batch in islice(batches(), max_batches or None)]
        loss_sum, num_tokens = sum(r.loss_sum for r in results), sum(r.num_tokens for r in results)
        total, tokens = total + loss_sum, tokens + num_tokens
        if num_tokens:
            losses[name] = loss_sum / num_tokens
    if tokens:
        losses["all"] = total / tokens
    return losses
