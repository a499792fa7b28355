from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokpipe.dataset import TokenDataset
from tokpipe.dataset.documents import document_arrays, mask_starts

LENGTHS = {"en": [[1, 1, 6, 8, 3], [5, 11, 2]], "hi": [[8, 8, 8], [16, 1, 7]]}


@pytest.fixture
def folder(tmp_path, dataset_writer):
    dataset_writer(tmp_path, [(source, False, lengths) for source, shards in LENGTHS.items() for lengths in shards])
    return tmp_path


def plain_outputs(starts, seq_len):
    """Position and document of every input token of one sample, token by token."""
    positions, documents, position, document = [], [], -1, 0
    for token in range(seq_len):
        if token and token in starts:
            position, document = -1, document + 1
        position += 1
        positions.append(position)
        documents.append(document)
    return positions, documents


@given(st.lists(st.sets(st.integers(0, 12)), min_size=1, max_size=5), st.integers(1, 12))
def test_document_arrays_equal_the_plain_walk(starts, seq_len):
    arrays = document_arrays([np.array(sorted(found), dtype=np.int64) for found in starts], seq_len)
    expected = [plain_outputs(found, seq_len) for found in starts]
    assert arrays.position_ids.tolist() == [positions for positions, _ in expected]
    assert arrays.document_ids.tolist() == [documents for _, documents in expected]
    flat = arrays.position_ids.ravel()
    assert arrays.cu_seqlens.tolist() == [*np.flatnonzero(flat == 0).tolist(), flat.size]
    assert arrays.cu_seqlens.dtype == np.int32
    assert arrays.max_seqlen == np.diff(arrays.cu_seqlens).max() == flat.max() + 1


def test_mask_starts_ignores_the_label_before_a_start():
    labels = np.arange(12).reshape(3, 4)
    # A start at 0 has no label in the sample; one at seq_len is the last label.
    mask_starts(labels, [np.array([0, 2]), np.array([4]), np.array([], dtype=np.int64)], -100)
    assert labels.tolist() == [[0, -100, 2, 3], [4, 5, 6, -100], [8, 9, 10, 11]]


@pytest.mark.parametrize("seq_len", [3, 5, 8, 16])
def test_outputs_come_from_the_index_also_across_shards(folder, seq_len):
    dataset = TokenDataset(folder, seq_len=seq_len, global_batch_size=2, weights={"en": 0.5, "hi": 0.5}, documents=True)
    masked = TokenDataset(folder, seq_len=seq_len, global_batch_size=2, weights={"en": 0.5, "hi": 0.5}, mask_document_starts=True)
    all_starts = {s: set(np.cumsum([0, *np.concatenate(shards)]).tolist()) for s, shards in LENGTHS.items()}
    for step in range(12):
        batch = dataset.read(step, 0, 2)
        groups, samples = dataset.plan.locate(np.full(2, step), np.arange(2))
        flat = []
        for row, (group, sample) in enumerate(zip(groups.tolist(), samples.tolist(), strict=True)):
            first = sample * seq_len
            starts = {start - first for start in all_starts[("en", "hi")[group]]}
            positions, documents = plain_outputs(starts, seq_len)
            assert batch.position_ids[row].tolist() == positions
            assert batch.document_ids[row].tolist() == documents
            flat += positions
            kept = [t + 1 not in starts for t in range(seq_len)]
            labels = masked.read(step, 0, 2).labels[row]
            assert (labels != -100).tolist() == kept
            assert labels[kept].tolist() == batch.labels[row][kept].tolist()
        # Strictly rising from 0 to the length of the batch, also where a sample ends exactly with a document.
        assert batch.cu_seqlens.tolist() == [*[i for i, position in enumerate(flat) if position == 0], 2 * seq_len]
        assert (np.diff(batch.cu_seqlens.numpy()) > 0).all()
        assert batch.max_seqlen == max(flat) + 1
    assert masked.read(0, 0, 2).position_ids is None


def test_samples_that_end_with_their_document(tmp_path, dataset_writer):
    dataset_writer(tmp_path, [("main", False, [4] * 9)])
    batch = TokenDataset(tmp_path, seq_len=4, global_batch_size=4, documents=True).read(0, 0, 4)
    assert batch.cu_seqlens.tolist() == [0, 4, 8, 12, 16]
    assert batch.max_seqlen == 4
    assert batch.document_ids.max() == 0


def test_padding_of_a_held_out_pass_is_one_piece(tmp_path, dataset_writer):
    dataset_writer(tmp_path, [("main", False, [9]), ("main", True, [4, 4, 3])])
    batch = TokenDataset(tmp_path, seq_len=4, global_batch_size=4, held_out=True, documents=True).read(0, 0, 4)
    assert batch.cu_seqlens.tolist() == [0, 4, 8, 12, 16]
    assert (batch.labels[2:] == -100).all()
    assert (batch.labels[:2] != -100).all()
