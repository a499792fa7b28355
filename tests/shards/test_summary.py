"""Totals from the manifest, and a document by its number."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tokpipe.errors import ManifestError
from tokpipe.shards import describe, read_document, source_totals, summarize


def test_totals_per_source_and_part(make_dataset):
    _, manifest = make_dataset()
    totals = source_totals(manifest)
    assert [(total.source, total.held_out, total.num_shards) for total in totals] == [
        ("hi", False, 2),
        ("hi", True, 1),
        ("en", False, 1),
    ]
    assert sum(total.num_tokens for total in totals) == sum(entry.num_tokens for entry in manifest.shards)
    assert sum(total.num_bytes for total in totals) == sum(entry.bin_bytes + entry.idx_bytes for entry in manifest.shards)


def test_summary_is_json_and_adds_up(make_dataset):
    _, manifest = make_dataset()
    summary = json.loads(json.dumps(summarize(manifest)))
    assert summary["num_documents"] == 200
    assert summary["num_shards"] == 4
    assert summary["num_tokens"] == sum(row["num_tokens"] for row in summary["sources"])
    assert "shards" not in summary


def test_description_is_a_table(make_dataset):
    _, manifest = make_dataset()
    lines = describe(manifest).splitlines()
    assert manifest.dataset_id in lines[0]
    assert lines[2].split() == ["source", "part", "shards", "documents", "tokens", "share", "bytes"]
    assert [line.split()[:3] for line in lines[3:7]] == [
        ["hi", "training", "2"],
        ["hi", "held-out", "1"],
        ["en", "training", "1"],
        ["(all)", "training", "3"],
    ]
    assert lines[-2:] == ["rejected: 3 bad-json", "skipped: 4 blank"]
    assert len({len(line) for line in lines[2:7]}) == 1


def test_documents_are_numbered_in_the_order_of_the_manifest(make_dataset):
    parts = [[np.array([10 * shard + 4, 2]), np.array([10 * shard + 5, 2])] for shard in range(4)]
    folder, manifest = make_dataset(documents=parts)
    flat = [document.tolist() for part in parts for document in part]
    for number, expected in enumerate(flat):
        found = read_document(folder, manifest, number)
        assert found.ids.tolist() == expected
        assert (found.shard, found.index) == (manifest.shards[number // 2], number % 2)
    for number in (-1, 8):
        with pytest.raises(ManifestError, match="the dataset has 8 documents"):
            read_document(folder, manifest, number)
