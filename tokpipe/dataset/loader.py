"""TokenLoader: micro-batches without end, and the few numbers from which training goes on exactly.

`step` counts what was handed out, never what was read ahead: batches that a prefetch thread or worker holds when a state is taken
are read again after resuming.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from torch.utils.data import DataLoader, Dataset

from tokpipe.dataset.batch import Batch
from tokpipe.dataset.prefetch import Prefetcher
from tokpipe.dataset.state import check_state, make_state
from tokpipe.dataset.token_dataset import TokenDataset
from tokpipe.errors import PartitionError, StateMismatchError
from tokpipe.partition import HeldOutPlan, LeftOut, PartitionPlan, Phase

_LOGGER = logging.getLogger(__name__)

Request = tuple[int, int, int]
"""(step, first sample of this rank's share, number of samples)."""


class TokenLoader:
    """Hands a rank its samples, micro-batch by micro-batch or step by step, from wherever a state says.

    All iterators of a loader share its place: a new one goes on where the last one was left. A held-out pass begins anew.
    """

    def __init__(
        self,
        dataset: TokenDataset,
        micro_batch_size: int,
        *,
        max_steps: int | None = None,
        prefetch: int = 4,
        num_workers: int = 0,
        worker_context: str = "forkserver",
        pin_memory: bool = False,
        exact_micro_batch: bool = False,
    ) -> None:
        """Start at step 0.

        Args:
            dataset: this rank's samples.
            micro_batch_size: samples per batch; G / D is a multiple of it.
            max_steps: where iteration ends; the dataset's, unless given. Without any it goes on epoch after epoch.
            prefetch: batches that a thread reads ahead; 0 reads them when they are asked for.
            num_workers: processes instead of the thread. Far slower here: moving a batch costs more than building it.
            worker_context: how they are started.
            pin_memory: copy batches into page-locked memory.
            exact_micro_batch: a state taken inside a step goes on inside it, and only with the same D and micro-batch size;
                else it goes on at that step's first micro-batch.

        Raises:
            PartitionError: if the micro-batch does not divide G / D.
        """
        self.dataset = dataset
        self.micro_batch_size = micro_batch_size
        self.max_steps = dataset.num_steps if max_steps is None else max_steps
        self.prefetch, self.num_workers, self.worker_context = prefetch, num_workers, worker_context
        self.pin_memory, self.exact_micro_batch = pin_memory, exact_micro_batch
        self._step = 0
        self._done = 0
        self._generation = 0
        self._check_micro_batch(dataset.plan.phases[-1].start)

    @property
    def step(self) -> int:
        """The step that the next batch belongs to."""
        return self._step

    def __iter__(self) -> Iterator[Batch]:
        """Micro-batches: (micro_batch_size, seq_len)."""
        return self._iterate(whole_steps=False)

    def steps(self) -> Iterator[Batch]:
        """Whole steps: all G / D samples of this rank in one batch, which is what a pipeline schedule takes.

        A step that was begun in micro-batches comes whole again.
        """
        return self._iterate(whole_steps=True)

    def state_dict(self) -> dict[str, Any]:
        """The state to save: dataset id, plan hash, phases, step. Valid for any number of ranks that the batch allows."""
        state = make_state(self.dataset.plan, self._step)
        if self.exact_micro_batch:
            state["inside_step"] = self._inside_step()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken.

        The dataset has the state's phases, and may have more from the first step on that has not begun: this is how to go on
        with a number of ranks that does not divide the old batch.

        Raises:
            StateMismatchError: if it belongs to another dataset, plan or schedule, or is inside a step of other micro-batches.
            PartitionError: if this D or micro-batch size does not divide a batch to come.
        """
        inside = state.get("inside_step", {"samples": 0})
        done = int(inside["samples"]) if self.exact_micro_batch else 0
        step = check_state(state, self.dataset.plan, inside_step=done > 0)
        if done:
            here = self._inside_step() | {"samples": done}
            if inside != here:
                raise StateMismatchError(
                    f"the state was taken inside step {step}, after {done} samples of a rank, as {inside}; here it is {here}. "
                    "Use the same numbers, or exact_micro_batch=False to repeat that step from its first micro-batch."
                )
        self._check_micro_batch(step)
        self._step, self._done = step, done
        self._generation += 1

    def change(
        self,
        *,
        global_batch_size: int | None = None,
        weights: Mapping[str, float] | None = None,
        seq_len: int | None = None,
        start: int | None = None,
    ) -> dict[str, tuple[LeftOut, ...]]:
        """Begin a new phase; what is not given stays as it is. Every rank calls it at the same place.

        Args:
            global_batch_size, weights, seq_len: of the new phase. An empty `weights` goes back to all sources in their natural
                proportion.
            start: its first step, by default the next one that has not begun. Phases that were to start then or later go.

        Returns:
            For each source whose epoch the change cuts short, how many samples are left out.

        Raises:
            PartitionError: if the phase cannot be laid out, or would begin in the past.
        """
        plan = self.dataset.plan
        if isinstance(plan, HeldOutPlan):
            raise PartitionError("a held-out pass has one phase and cannot change")
        earliest = self._step + (self._done > 0)
        start = earliest if start is None else start
        if start < earliest:
            raise PartitionError(f"a phase cannot start at step {start}: step {earliest} is the first that has not begun")
        old = plan.phase_at(start)
        changed = plan.with_phase(
            Phase(
                start=start,
                global_batch_size=old.global_batch_size if global_batch_size is None else global_batch_size,
                seq_len=old.seq_len if seq_len is None else seq_len,
                weights=old.weights if weights is None else tuple(weights.items()) or None,
            )
        )
        self._check_micro_batch(start, changed)
        self.dataset.change_plan(changed)
        self._generation += 1
        return self._report(changed, start)

    def _iterate(self, *, whole_steps: bool) -> Generator[Batch, None, None]:
        if self.dataset.held_out:
            self._step, self._done = 0, 0
        if whole_steps:
            self._done = 0
        self._check_micro_batch(self._step)
        while self.max_steps is None or self._step < self.max_steps:
            generation = self._generation
            with closing(self._read_ahead(whole_steps=whole_steps)) as batches:
                for batch in batches:
                    place = self._advance(batch)
                    yield batch
                    # A change, a loaded state or another iterator: what was read ahead is dropped and read by what holds now.
                    if (self._generation, self._step, self._done) != (generation, *place):
                        break

    def _advance(self, batch: Batch) -> tuple[int, int]:
        """Move to behind a batch; returns that place, as step and samples of this rank inside it."""
        self._step, self._done = batch.step, batch.first + len(batch.input_ids)
        if self._done == self.dataset.samples_per_rank(batch.step):
            self._step, self._done = batch.step + 1, 0
        return self._step, self._done

    def _read_ahead(self, *, whole_steps: bool) -> Generator[Batch, None, None]:
        requests = self._requests(whole_steps=whole_steps)
        if self.num_workers:
            yield from self._from_workers(requests)
            return
        batches = (self._build(request) for request in requests)
        if not self.prefetch:
            yield from batches
            return
        prefetcher = Prefetcher(batches, self.prefetch)
        with closing(prefetcher):
            yield from prefetcher

    def _build(self, request: Request) -> Batch:
        batch = self.dataset.read(*request)
        return batch.pin_memory() if self.pin_memory else batch

    def _from_workers(self, requests: Iterator[Request]) -> Generator[Batch, None, None]:
        yield from DataLoader(
            _Requested(self.dataset),
            batch_size=None,
            sampler=_Once(requests),
            num_workers=self.num_workers,
            collate_fn=_as_is,
            prefetch_factor=max(1, self.prefetch),
            multiprocessing_context=self.worker_context,
            pin_memory=self.pin_memory,
        )

    def _requests(self, *, whole_steps: bool) -> Iterator[Request]:
        step, first = self._step, self._done
        while self.max_steps is None or step < self.max_steps:
            per_rank = self.dataset.samples_per_rank(step)
            count = per_rank if whole_steps else self.micro_batch_size
            for begin in range(first, per_rank, count):
                yield step, begin, count
            step, first = step + 1, 0

    def _check_micro_batch(self, step: int, plan: PartitionPlan | HeldOutPlan | None = None) -> None:
        """Check the phases from `step` on against D and the micro-batch size."""
        plan = plan or self.dataset.plan
        self.dataset.check_plan(plan, step)
        size, world = self.micro_batch_size, self.dataset.dp_world_size
        for phase in plan.phases:
            per_rank = phase.global_batch_size // world
            if phase.start >= plan.phase_at(step).start and (size < 1 or per_rank % size):
                works = [n for n in range(1, per_rank + 1) if per_rank % n == 0]
                nearest = sorted(sorted(works, key=lambda n: abs(n - size))[:2])
                raise PartitionError(
                    f"micro_batch_size={size} does not divide the {per_rank} samples that each of {world} ranks reads of "
                    f"global_batch_size={phase.global_batch_size}; the nearest that do: {' and '.join(map(str, nearest))}"
                )

    def _inside_step(self) -> dict[str, int]:
        return {
            "samples": self._done,
            "micro_batch_size": self.micro_batch_size,
            "dp_world_size": self.dataset.dp_world_size,
        }

    def _report(self, plan: PartitionPlan, start: int) -> dict[str, tuple[LeftOut, ...]]:
        found = {}
        for name, events in plan.left_out().items():
            now = tuple(event for event in events if event.step == start)
            if now:
                found[name] = now
                _LOGGER.info("step %d: %s ends epoch %d with %d samples unread", start, name, now[0].epoch, now[0].num_samples)
        return found


class _Requested(Dataset[Batch]):
    """The dataset as torch's workers see it: an index is a `Request`."""

    def __init__(self, dataset: TokenDataset) -> None:
        self.dataset = dataset

    def __getitem__(self, request: Request) -> Batch:
        return self.dataset.read(*request)


class _Once:
    """An iterator as the sampler that torch's DataLoader wants."""

    def __init__(self, requests: Iterator[Request]) -> None:
        self.requests = requests

    def __iter__(self) -> Iterator[Request]:
        return self.requests


def _as_is(batch: Any) -> Any:
    return batch
