"""The gang of processes that the trainer's tests share, and the folder its jobs are imported from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Jobs are sent to other processes by name, so their modules have to be importable there: children inherit this path.
sys.path.insert(0, str(Path(__file__).parent))

from gang import Gang

# The model is tiny; threads that wait for each other on a busy machine cost a hundred times what they save.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def gang() -> Iterator[Gang]:
    """Eight processes of one process group."""
    started = Gang()
    yield started
    started.close()
