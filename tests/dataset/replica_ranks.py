"""Eight processes as pp2 x dp2 x tp2 that read one dataset and compare batches. Run by test_replicas.py.

Run: python replica_ranks.py DATASET RESULTS
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tokpipe.dataset import TokenDataset, TokenLoader, check_replicas
from tokpipe.errors import PartitionError

WORLD = 8


def read(rank: int, folder: str, results: str) -> None:
    """One process: read three steps, prove the replica, then see a planted difference."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{results}/store", WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    found: dict[str, object] = {}
    try:
        TokenDataset(folder, seq_len=8, global_batch_size=8)
    except PartitionError as error:
        found["without_rank"] = str(error)
    dataset = TokenDataset(folder, seq_len=8, global_batch_size=8, mesh=mesh, documents=True)
    batches = list(TokenLoader(dataset, 2, max_steps=3))
    for batch in batches:
        check_replicas(batch, mesh)
    found |= {"dp_rank": dataset.dp_rank, "rows": [row for batch in batches for row in batch.input_ids.tolist()]}
    planted = batches[-1]
    if rank == 5:
        planted = replace(planted, labels=planted.labels + (planted.labels == planted.labels.max()))
    try:
        check_replicas(planted, mesh)
    except PartitionError as error:
        found["planted"] = str(error)
    Path(results, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks and wait for them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.device_mesh", "tokpipe.dataset"])
    ranks = [context.Process(target=read, args=(rank, *sys.argv[1:3])) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        if process.is_alive():
            process.kill()
    sys.exit(max(abs(process.exitcode or 0) for process in ranks))


if __name__ == "__main__":
    main()
