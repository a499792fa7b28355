"""The dataset's order, and what a finished build leaves in its manifest."""

from __future__ import annotations

from tokpipe.build import build
from tokpipe.build.finish import ordered
from tokpipe.shards import ShardEntry, read_manifest


def entry(name: str, source: str, *, held_out: bool = False) -> ShardEntry:
    return ShardEntry(name, source, held_out, 1, 1, 2, 62, "0" * 32, "0" * 32)


def test_shards_are_ordered_by_source_side_task_and_piece():
    given = [
        entry("shards/hi-00001-000", "hi"),
        entry("shards/hi-00001-000-held-out", "hi", held_out=True),
        entry("shards/hi-00001-001", "hi"),
        entry("shards/en-00002-000", "en"),
    ]
    names = [shard.name.removeprefix("shards/") for shard in ordered(given, ["en", "hi"])]
    assert names == ["en-00002-000", "hi-00001-000", "hi-00001-001", "hi-00001-000-held-out"]


def test_manifest_says_how_it_was_made(given, inline):
    build(given, engine=inline)
    manifest = read_manifest(given.out)
    assert manifest.settings["validation"] == 0.05 and manifest.settings["corpus"]["text_column"] == "text"
    assert manifest.settings["plan"] and manifest.settings["corpus_fingerprint"]
    assert manifest.tokenizer.eos_id == 2 and manifest.tokenizer.bos_id == 1 and not manifest.tokenizer.prepend_bos
    assert manifest.seed == 0 and manifest.rejects == {}
