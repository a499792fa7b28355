"""The partition that a build writes at its end."""

from __future__ import annotations

from tokpipe.build.config import PartitionConfig
from tokpipe.build.store import Store, write_by
from tokpipe.errors import PartitionError
from tokpipe.partition import PARTITION_NAME, plan_partition, save_partition


def lay_out(config: PartitionConfig, store: Store, *, seed: int) -> tuple[str, ...]:
    """Write `partition.json`, unless one is there and nothing was asked for; returns what the user should know about it.

    Raises:
        PartitionError: if the layout was asked for (`config.exact`) and cannot be had; the dataset is finished all the same.
    """
    if not config.write or (store.exists(PARTITION_NAME) and not config.exact):
        return ()
    try:
        summary = plan_partition(
            store.out,
            dp=config.dp,
            seq_len=config.seq_len,
            global_batch_size=config.global_batch_size,
            seed=seed,
            exact=config.exact,
        )
    except PartitionError as error:
        if config.exact:
            raise PartitionError(f"The dataset is finished, but not its partition: {error}") from error
        return (f"No partition was written: {error}.",)
    write_by(store, PARTITION_NAME, lambda folder: save_partition(folder, summary))
    phase = summary.phase
    return (
        *(f"Partition: {notice}" for notice in summary.notices),
        f"{PARTITION_NAME}: {summary.dp_world_size:,} data-parallel ranks, {phase.global_batch_size:,} samples of "
        f"{phase.seq_len:,} tokens a step.",
    )
