from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokpipe.dataset import TokenDataset, TokenLoader
from tokpipe.errors import PartitionError, ShardFormatError, StateMismatchError

SHARDS = [
    ("en", False, [30, 1, 200, 7]),
    ("hi", False, [50, 90]),
    ("en", False, [3, 3, 300]),
    ("hi", False, [5] * 60),
    ("en", True, [40, 21]),
    ("hi", True, [33]),
]


@pytest.fixture
def folder(tmp_path, dataset_writer):
    dataset_writer(tmp_path, SHARDS)
    return tmp_path


@pytest.fixture
def joined(tmp_path, dataset_writer):
    """(folder, ids of each source)."""
    ids = dataset_writer(tmp_path / "joined", SHARDS)
    return tmp_path / "joined", ids


def collect(dataset, num_steps, count=1):
    """(steps, samples, 2, seq_len) of a rank."""
    out = []
    for step in range(num_steps):
        per_rank = dataset.samples_per_rank(step)
        batches = [dataset.read(step, first, count) for first in range(0, per_rank, count)]
        out.append([torch.cat([b.input_ids for b in batches]).tolist(), torch.cat([b.labels for b in batches]).tolist()])
    return out


def test_windows_are_the_source_tokens_across_documents_and_shards(joined):
    folder, ids = joined
    dataset = TokenDataset(folder, seq_len=8, global_batch_size=8, weights={"en": 0.5, "hi": 0.5})
    for step in range(40):
        groups, samples = dataset.plan.locate(np.full(8, step), np.arange(8))
        batch = dataset.read(step, 0, 8)
        assert batch.input_ids.dtype == batch.labels.dtype == torch.int64
        assert batch.input_ids.is_contiguous() and batch.labels.is_contiguous()
        for row, (group, sample) in enumerate(zip(groups.tolist(), samples.tolist(), strict=True)):
            expected = ids[("en", "hi")[group], False][8 * sample : 8 * sample + 9]
            assert batch.input_ids[row].tolist() == expected[:-1].tolist()
            assert batch.labels[row].tolist() == expected[1:].tolist()


def test_without_weights_every_token_but_the_first_is_a_label_once_apart_from_the_tail(joined):
    folder, ids = joined
    everything = np.concatenate([ids["en", False], ids["hi", False]])
    dataset = TokenDataset(folder, seq_len=5, global_batch_size=6, order="full")
    labels = [row for step in range(dataset.steps_per_epoch) for row in dataset.read(step, 0, 6).labels.tolist()]
    num_samples = (len(everything) - 1) // 5
    assert dataset.steps_per_epoch == num_samples // 6
    assert len(labels) == num_samples // 6 * 6
    assert sorted(token for row in labels for token in row) == sorted(everything[1 : 1 + 5 * len(labels)].tolist())


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_global_batch_is_the_same_for_every_world_size(folder, data):
    size = data.draw(st.sampled_from([12, 24]))
    weights = data.draw(st.sampled_from([None, {"en": 0.5, "hi": 0.5}, {"hi": 1.0}]))
    options = {
        "seq_len": data.draw(st.integers(1, 9)),
        "global_batch_size": size,
        "weights": weights,
        "seed": data.draw(st.integers(0, 9)),
    }
    whole = collect(TokenDataset(folder, **options), 12)
    for world in (1, 2, 3, 4, 6, 12):
        parts = [collect(TokenDataset(folder, dp_rank=r, dp_world_size=world, **options), 12) for r in range(world)]
        for step in range(12):
            for kind in range(2):
                assert [row for part in parts for row in part[step][kind]] == whole[step][kind]


def test_map_style_under_a_plain_dataloader_in_order(folder):
    dataset = TokenDataset(folder, seq_len=8, global_batch_size=6, dp_rank=1, dp_world_size=2)
    expected = [batch.input_ids for batch in TokenLoader(dataset, 3, max_steps=dataset.steps_per_epoch)]
    found = [batch["input_ids"] for batch in torch.utils.data.DataLoader(dataset, batch_size=3)]
    assert torch.equal(torch.cat(found), torch.cat(expected))
    assert len(dataset) == 3 * dataset.steps_per_epoch
    assert torch.equal(dataset[4]["labels"], found_labels(dataset, 4))
    with pytest.raises(IndexError, match="0 on to"):
        dataset[len(dataset)]


def found_labels(dataset, index):
    return dataset.read(index // 3, index % 3, 1).labels[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_plain_dataloader_with_workers_reads_the_same(folder, workers):
    dataset = TokenDataset(folder, seq_len=8, global_batch_size=6, max_steps=9, weights={"hi": 1})
    one = [batch["labels"] for batch in torch.utils.data.DataLoader(dataset, batch_size=4)]
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=workers, multiprocessing_context="forkserver")
    for a, b in zip(one, loader, strict=True):
        assert torch.equal(a, b["labels"])


def test_len_with_weights_needs_max_steps(folder):
    with pytest.raises(TypeError, match="give max_steps"):
        len(TokenDataset(folder, seq_len=8, global_batch_size=6, weights={"hi": 1}))
    dataset = TokenDataset(folder, seq_len=8, global_batch_size=6, weights={"hi": 1}, max_steps=70)
    assert len(dataset) == 420
    phases = [{"global_batch_size": 6, "seq_len": 8}, {"start": 10, "global_batch_size": 8, "seq_len": 8}]
    dataset = TokenDataset(folder, phases=phases, max_steps=12, dp_rank=0, dp_world_size=2)
    assert len(dataset) == 10 * 3 + 2 * 4
    assert torch.equal(dataset[33]["input_ids"], dataset.read(10, 3, 1).input_ids[0])


def test_pickles_small_and_reads_on(folder):
    dataset = TokenDataset(folder, seq_len=8, global_batch_size=6)
    dataset.read(0, 0, 6)
    data = pickle.dumps(dataset)
    assert len(data) < 2000
    assert torch.equal(pickle.loads(data).read(3, 0, 6).labels, dataset.read(3, 0, 6).labels)


def test_open_files_are_capped(folder):
    dataset = TokenDataset(folder, seq_len=8, global_batch_size=12, max_open_shards=2, order="full")
    expected = collect(TokenDataset(folder, seq_len=8, global_batch_size=12, order="full"), 9)
    assert collect(dataset, 9) == expected
    assert dataset._store.num_open == 2


def test_altered_shard_is_refused_when_it_is_touched(folder):
    dataset = TokenDataset(folder, seq_len=8, global_batch_size=6)
    path = next(folder.glob("shards/en-00000*.bin"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ShardFormatError, match="promises"):
        collect(dataset, dataset.steps_per_epoch)


def test_int32_ids_are_read(tmp_path, dataset_writer):
    ids = dataset_writer(tmp_path, [("main", False, [50, 50])], dtype="int32")
    batch = TokenDataset(tmp_path, seq_len=99, global_batch_size=1).read(0, 0, 1)
    assert batch.labels[0].tolist() == ids["main", False][1:].tolist()


def test_sample_outside_of_the_share_is_refused(folder):
    dataset = TokenDataset(folder, seq_len=8, global_batch_size=6, dp_rank=0, dp_world_size=3)
    with pytest.raises(PartitionError, match="samples 1 to 3 of the 2"):
        dataset.read(0, 1, 2)


ERRORS = [
    ({"global_batch_size": 7, "dp_rank": 0, "dp_world_size": 2}, "nearest that do: 6 and 8"),
    ({"global_batch_size": 1, "dp_rank": 0, "dp_world_size": 2}, "do: 2$"),
    ({"global_batch_size": 8, "dp_rank": 2, "dp_world_size": 2}, r"dp_rank must be in"),
    ({"global_batch_size": 8, "dp_rank": 1}, "go together"),
    ({"global_batch_size": 8, "weights": {"fr": 1.0}}, "'fr'; the dataset's sources are en, hi"),
    ({"global_batch_size": 8, "weights": {"en": 0.99, "hi": 0.01}}, "no lane.*nearest that can"),
    ({"global_batch_size": 3, "weights": {"en": 0.5, "hi": 0.5}}, "asks for 1.50.*nearest that can: 2 and 4"),
    ({"global_batch_size": 8, "weights": {"en": -1.0, "hi": 2.0}}, "not negative"),
    ({"global_batch_size": 8, "weights": {"en": 0.0}}, "one of them positive"),
    ({"global_batch_size": 500}, "122 samples.*too few for the 500 lanes.*largest global batch that works is 122"),
    ({"global_batch_size": 8, "seq_len": 2000}, "needs 2,001 tokens.*longest that works is 983"),
    ({"global_batch_size": 0}, "at least 1, got 0"),
    ({"global_batch_size": 8, "phases": []}, "phases say seq_len, global_batch_size already"),
    ({}, "give seq_len and global_batch_size, or phases"),
]


@pytest.mark.parametrize(("arguments", "message"), ERRORS, ids=[message[:30] for _, message in ERRORS])
def test_what_cannot_be_laid_out_says_the_nearest_that_can(folder, arguments, message):
    with pytest.raises(PartitionError, match=message):
        TokenDataset(folder, **({"seq_len": 8} | arguments))


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_held_out_is_every_sample_once_and_padded_to_the_same_loss_for_any_world_size(joined, world):
    folder, ids = joined
    labels, padded = [], 0
    for rank in range(world):
        dataset = TokenDataset(folder, seq_len=8, global_batch_size=6, held_out=True, dp_rank=rank, dp_world_size=world)
        assert len(dataset) == 2 * 6 // world
        for batch in TokenLoader(dataset, 1):
            row = batch.labels[0].tolist()
            if row[0] == -100:
                assert set(row) == {-100}
                padded += 1
            else:
                labels.append(row)
    expected = [ids[source, True][i * 8 + 1 : i * 8 + 9].tolist() for source, n in (("en", 7), ("hi", 4)) for i in range(n)]
    assert sorted(labels) == sorted(expected)
    assert padded == 12 - 11


def test_held_out_source_too_small_is_reported_not_fatal(folder, caplog):
    dataset = TokenDataset(folder, seq_len=50, global_batch_size=2, held_out=True)
    assert "source 'hi' has 33 held-out tokens" in dataset.notices[0]
    assert dataset.notices[0] in caplog.text
    assert [batch.labels.shape for batch in TokenLoader(dataset, 2)] == [(2, 50)]
    assert len(TokenDataset(folder, seq_len=500, global_batch_size=2, held_out=True)) == 0


def test_held_out_of_chosen_sources(folder):
    dataset = TokenDataset(folder, seq_len=8, global_batch_size=2, held_out=True, weights={"hi": 1.0})
    assert dataset.num_steps == 2
    with pytest.raises(PartitionError, match="'fr'"):
        TokenDataset(folder, seq_len=8, global_batch_size=2, held_out=True, weights={"fr": 1.0})


def test_documents_come_with_single_samples_too(folder):
    sample = TokenDataset(folder, seq_len=8, global_batch_size=6, documents=True)[3]
    assert set(sample) == {"input_ids", "labels", "position_ids", "document_ids"}
    assert {tensor.shape for tensor in sample.values()} == {(8,)}


def test_steps_per_epoch_where_there_is_one(folder):
    assert TokenDataset(folder, seq_len=8, global_batch_size=6, held_out=True).steps_per_epoch == 2
    with pytest.raises(PartitionError, match=r"epochs of its own, of {'en': 22, 'hi': 18} steps"):
        _ = TokenDataset(folder, seq_len=8, global_batch_size=6, weights={"en": 1, "hi": 1}).steps_per_epoch


def test_held_out_pass_has_one_phase(folder):
    phases = [{"global_batch_size": 6, "seq_len": 8}, {"start": 1, "global_batch_size": 8, "seq_len": 8}]
    with pytest.raises(PartitionError, match="one pass in one phase, got 2"):
        TokenDataset(folder, phases=phases, held_out=True)


def test_negative_step_is_refused(folder):
    with pytest.raises(PartitionError, match="must not be negative, got -1"):
        TokenDataset(folder, seq_len=8, global_batch_size=6).read(-1, 0, 1)


def test_dataset_that_changed_since_it_was_pickled_is_refused(folder, dataset_writer):
    data = pickle.dumps(TokenDataset(folder, seq_len=8, global_batch_size=6))
    dataset_writer(folder, [("en", False, [400])])
    with pytest.raises(StateMismatchError, match=r"held dataset .* and holds"):
        pickle.loads(data)
