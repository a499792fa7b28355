from __future__ import annotations

import json
import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokpipe.dataset import TokenDataset, TokenLoader
from tokpipe.errors import PartitionError, ShardFormatError, StateMismatchError


@pytest.fixture(scope="module")
def folder(tmp_path_factory, dataset_writer):
    path = tmp_path_factory.mktemp("loader")
    dataset_writer(path, [("en", False, [30, 1, 200, 7, 300]), ("hi", False, [50, 90, 5, 5, 200]), ("hi", True, [60])])
    return path


def open_dataset(folder, **options):
    return TokenDataset(folder, **({"seq_len": 4, "global_batch_size": 12} | options))


def rows(batches):
    return [row for batch in batches for row in batch.input_ids.tolist()]


def take(loader, count, *, whole_steps=False):
    """`count` batches, leaving the loader where they end."""
    out = []
    if count:
        for batch in loader.steps() if whole_steps else loader:
            out.append(batch)
            if len(out) == count:
                break
    return out


def global_rows(folder, loaders, step_batches):
    """What all ranks read in some steps, step by step and rank by rank."""
    parts = [take(loader, step_batches, whole_steps=True) for loader in loaders]
    return [[row for part in parts for row in part[i].input_ids.tolist()] for i in range(step_batches)]


def test_micro_batches_and_steps_read_the_same(folder):
    micro = take(TokenLoader(open_dataset(folder), 3), 8)
    steps = take(TokenLoader(open_dataset(folder), 3), 2, whole_steps=True)
    assert [batch.input_ids.shape for batch in micro] == [(3, 4)] * 8
    assert [batch.input_ids.shape for batch in steps] == [(12, 4)] * 2
    assert rows(micro) == rows(steps)
    assert [(batch.step, batch.first) for batch in micro[:5]] == [(0, 0), (0, 3), (0, 6), (0, 9), (1, 0)]


def test_goes_on_epoch_after_epoch_and_stops_at_max_steps(folder):
    dataset = open_dataset(folder)
    per_epoch = dataset.steps_per_epoch
    batches = list(TokenLoader(dataset, 12, max_steps=3 * per_epoch))
    epochs = [rows(batches[i * per_epoch : (i + 1) * per_epoch]) for i in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert all(len(epoch) == per_epoch * 12 for epoch in epochs)


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"prefetch": 1}, {"prefetch": 7}], ids=str)
def test_interruptions_change_nothing(folder, options):
    expected = rows(TokenLoader(open_dataset(folder), 3, max_steps=40, prefetch=0))
    found, state = [], None
    for batches in (4, 12, 3 * 4, 5 * 4, 25 * 4, 1000):  # stops between steps, at an epoch's end and after three and more saves
        loader = TokenLoader(open_dataset(folder), 3, max_steps=40, **options)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        found += rows(take(loader, batches))
        state = loader.state_dict()
    assert found == expected


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_resume_on_any_number_of_ranks_equals_never_having_stopped(folder, data):
    weights = data.draw(st.sampled_from([None, {"en": 0.5, "hi": 0.5}]))
    starts = [0, *sorted(data.draw(st.sets(st.integers(1, 45), max_size=3)))]
    phases = [
        {"start": s, "global_batch_size": data.draw(st.sampled_from([12, 24, 36])), "seq_len": 4, "weights": weights}
        for s in starts
    ]
    expected = global_rows(folder, [TokenLoader(TokenDataset(folder, phases=phases), 1, prefetch=0)], 60)
    found, state = [], None
    while len(found) < 60:
        world = data.draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
        loaders = [
            TokenLoader(TokenDataset(folder, phases=phases, dp_rank=r, dp_world_size=world), 1, prefetch=0) for r in range(world)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        found += global_rows(folder, loaders, min(60 - len(found), data.draw(st.integers(1, 30))))
        states = [loader.state_dict() for loader in loaders]
        assert all(state == states[0] for state in states)
        state = states[0]
    assert found == expected


def test_state_inside_a_step_repeats_that_step(folder):
    loader = TokenLoader(open_dataset(folder), 3)
    before = take(loader, 6)
    state = loader.state_dict()
    assert state["step"] == 1
    again = TokenLoader(open_dataset(folder), 3)
    again.load_state_dict(state)
    assert rows(take(again, 2)) == rows(before[4:6])


def test_exact_micro_batch_goes_on_inside_the_step_and_only_alike(folder):
    loader = TokenLoader(open_dataset(folder), 3, exact_micro_batch=True)
    expected = rows(TokenLoader(open_dataset(folder), 3, max_steps=3))
    before = rows(take(loader, 6))
    state = loader.state_dict()
    again = TokenLoader(open_dataset(folder), 3, exact_micro_batch=True, max_steps=3)
    again.load_state_dict(state)
    assert before + rows(again) == expected
    with pytest.raises(StateMismatchError, match="after 6 samples"):
        TokenLoader(open_dataset(folder), 2, exact_micro_batch=True).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="'dp_world_size': 2"):
        dataset = open_dataset(folder, dp_rank=0, dp_world_size=2)
        TokenLoader(dataset, 3, exact_micro_batch=True).load_state_dict(state)
    # Between two steps there is nothing to be exact about.
    loader = TokenLoader(open_dataset(folder), 3, exact_micro_batch=True)
    take(loader, 4)
    TokenLoader(open_dataset(folder), 2, exact_micro_batch=True).load_state_dict(loader.state_dict())


def test_a_new_iterator_goes_on_where_the_last_was_left(folder):
    loader = TokenLoader(open_dataset(folder), 3)
    found = rows(take(loader, 5)) + rows(take(loader, 7))
    assert found == rows(TokenLoader(open_dataset(folder), 3, max_steps=3))
    assert loader.step == 3


@pytest.mark.parametrize("prefetch", [0, 3])
def test_iterators_in_turn_share_one_place(folder, prefetch):
    loader = TokenLoader(open_dataset(folder), 3, prefetch=prefetch)
    one, other = iter(loader), iter(loader)
    found = [next(one), next(one), next(other), next(one), next(other), next(other), next(one), next(one)]
    assert rows(found) == rows(TokenLoader(open_dataset(folder), 3, max_steps=2))


@pytest.mark.parametrize("prefetch", [0, 3])
def test_change_in_the_middle_of_iteration_equals_the_schedule(folder, prefetch):
    loader = TokenLoader(open_dataset(folder), 3, max_steps=20, prefetch=prefetch)
    found = []
    for number, batch in enumerate(loader):
        found += rows([batch])
        if number == 13:  # inside step 3
            left_out = loader.change(global_batch_size=24)
        if batch.step == 9 and batch.first == 21:
            loader.change(global_batch_size=6, weights={"en": 0.5, "hi": 0.5})
    assert left_out == {}
    phases = [
        {"global_batch_size": 12, "seq_len": 4},
        {"start": 4, "global_batch_size": 24, "seq_len": 4},
        {"start": 10, "global_batch_size": 6, "seq_len": 4, "weights": {"hi": 0.5, "en": 0.5}},
    ]
    scheduled = TokenLoader(TokenDataset(folder, phases=phases), 3, max_steps=20)
    assert found == rows(scheduled)
    # The state after a change resumes with the phases it carries.
    state = loader.state_dict()
    TokenLoader(TokenDataset(folder, phases=state["phases"]), 3).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="one more phase, from step 4"):
        TokenLoader(open_dataset(folder), 3).load_state_dict(state)


def test_change_reports_what_it_leaves_out_and_refuses_the_past(folder):
    loader = TokenLoader(open_dataset(folder), 3)
    take(loader, 9)
    with pytest.raises(PartitionError, match="step 3 is the first that has not begun"):
        loader.change(global_batch_size=6, start=2)
    with pytest.raises(PartitionError, match=r"micro_batch_size=3 does not divide the 8.*nearest that do: 2 and 4"):
        loader.change(global_batch_size=8)
    (event,) = loader.change(seq_len=8)["all sources"]
    total = (888 - 1) // 4
    assert (event.step, event.epoch, event.num_samples) == (3, 0, total - 36)
    assert [batch.input_ids.shape for batch in take(loader, 4)] == [(3, 4)] * 3 + [(3, 8)]


def test_change_to_weights_and_back(folder):
    loader = TokenLoader(open_dataset(folder), 3)
    take(loader, 8)
    (event,) = loader.change(weights={"en": 0.5, "hi": 0.5})["all sources"]
    assert event.epoch == 0
    assert loader.dataset.plan.epochs_at(2) == {"en": 1.0, "hi": 1.0}
    take(loader, 8)
    assert set(loader.change(weights={})) == {"en", "hi"}
    assert loader.dataset.plan.epochs_at(4) == {"all sources": 2.0}
    assert take(loader, 1)[0].step == 4


def test_a_world_size_that_does_not_divide_goes_by_a_phase(folder):
    loader = TokenLoader(open_dataset(folder), 3)
    before = rows(take(loader, 8))
    state = loader.state_dict()
    with pytest.raises(PartitionError, match="does not divide among 5"):
        open_dataset(folder, dp_rank=0, dp_world_size=5)
    phases = [*state["phases"], {"start": 2, "global_batch_size": 15, "seq_len": 4}]
    after = []
    for rank in range(5):
        loader = TokenLoader(TokenDataset(folder, phases=phases, dp_rank=rank, dp_world_size=5), 3)
        with pytest.raises(PartitionError, match="12 samples does not divide among 5"):
            next(iter(loader))
        loader.load_state_dict(state)
        after += rows(take(loader, 1))
    assert before + after == rows(TokenLoader(TokenDataset(folder, phases=phases), 3, max_steps=3))


def test_phases_may_be_added_only_where_nothing_was_read(folder):
    loader = TokenLoader(open_dataset(folder), 3, exact_micro_batch=True)
    take(loader, 9)
    state = loader.state_dict()
    for start, exact, refused in ((1, False, True), (2, False, False), (2, True, True), (3, True, False)):
        dataset = TokenDataset(folder, phases=[*state["phases"], {"start": start, "global_batch_size": 6, "seq_len": 4}])
        loader = TokenLoader(dataset, 3, exact_micro_batch=exact)
        if refused:
            with pytest.raises(StateMismatchError, match=f"one more phase, from step {start}"):
                loader.load_state_dict(state)
        else:
            loader.load_state_dict(state)


MISMATCHES = [
    ({"global_batch_size": 24}, "phase 0 differs: global_batch_size is 12 in the state and 24 asked"),
    ({"seq_len": 8}, "seq_len is 4 in the state and 8 asked"),
    ({"weights": {"en": 0.5, "hi": 0.5}}, "weights is None in the state and {'en': 0.5, 'hi': 0.5} asked"),
    ({"seed": 3}, "made with seed 0, asked is 3"),
    ({"order": "full"}, "made with order 'blocks', asked is 'full'"),
    ({"held_out": True}, "order 'blocks'"),
]


@pytest.mark.parametrize(("options", "message"), MISMATCHES, ids=[message[:25] for _, message in MISMATCHES])
def test_state_of_another_plan_is_refused_with_the_difference(folder, options, message):
    state = TokenLoader(open_dataset(folder), 3).state_dict()
    with pytest.raises(StateMismatchError, match=message):
        TokenLoader(open_dataset(folder, **options), 3).load_state_dict(state)


def test_state_of_another_dataset_or_version_is_refused(folder, tmp_path, dataset_writer):
    loader = TokenLoader(open_dataset(folder), 3)
    state = loader.state_dict()
    dataset_writer(tmp_path, [("en", False, [500])])
    with pytest.raises(StateMismatchError, match=f"belongs to dataset {state['dataset_id']}, open is"):
        TokenLoader(open_dataset(tmp_path), 3).load_state_dict(state)
    for changed, message in (
        ({"version": 2}, "version 2"),
        ({"plan_hash": "0"}, "hash 0"),
        ({"step": -1}, "got -1"),
    ):
        with pytest.raises(StateMismatchError, match=message):
            loader.load_state_dict(state | changed)
    with pytest.raises(StateMismatchError, match=r"dataset_id, plan_hash.* missing"):
        loader.load_state_dict({"version": 1})


@pytest.mark.parametrize("size", [0, 5, 24])
def test_micro_batch_that_does_not_divide_is_refused(folder, size):
    with pytest.raises(PartitionError, match=f"micro_batch_size={size} does not divide the 12 samples.*nearest that do"):
        TokenLoader(open_dataset(folder), size)


def test_held_out_pass_begins_anew_every_time(folder):
    loader = TokenLoader(open_dataset(folder, held_out=True), 3)
    first = rows(loader)
    assert rows(loader) == first == rows(TokenLoader(open_dataset(folder, held_out=True), 12, prefetch=0))
    with pytest.raises(PartitionError, match="one phase"):
        loader.change(global_batch_size=24)


def test_workers_read_the_same_and_their_state_is_exact(folder):
    expected = rows(TokenLoader(open_dataset(folder), 3, max_steps=6))
    loader = TokenLoader(open_dataset(folder), 3, max_steps=6, num_workers=2)
    found = rows(take(loader, 10))
    state = loader.state_dict()
    assert state["step"] == 2
    again = TokenLoader(open_dataset(folder), 3, max_steps=6, num_workers=1)
    again.load_state_dict(state)
    assert found[:24] + rows(again) == expected


def test_prefetch_thread_ends_with_its_iterator(folder):
    loader = TokenLoader(open_dataset(folder), 3, prefetch=2)
    iterator = iter(loader)
    next(iterator)
    assert "tokpipe-prefetch" in {thread.name for thread in threading.enumerate()}
    iterator.close()
    assert "tokpipe-prefetch" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_failure_while_reading_reaches_the_caller(tmp_path, dataset_writer, prefetch):
    dataset_writer(tmp_path, [("en", False, [500])])
    loader = TokenLoader(open_dataset(tmp_path), 3, prefetch=prefetch)
    path = next(tmp_path.glob("shards/*.bin"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ShardFormatError, match="promises"):
        next(iter(loader))


def test_batches_move_together(folder):
    (batch,) = take(TokenLoader(open_dataset(folder, documents=True), 3), 1)
    moved = batch.to("meta")
    assert moved.cu_seqlens.device.type == moved.labels.device.type == "meta"
    assert (moved.step, moved.max_seqlen) == (batch.step, batch.max_seqlen)
    assert torch.equal(batch.to("cpu").input_ids, batch.input_ids)
