"""dataset.json: canonical, atomic, and refused when it contradicts itself."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from pathlib import Path

import pytest
import xxhash

from tokpipe.errors import ManifestError
from tokpipe.shards import Manifest, ShardEntry, TokenizerEntry, dataset_id, read_manifest, write_manifest


def entry(number: int, **changes) -> ShardEntry:
    base = ShardEntry(
        name=f"shards/hi-{number:05}-000",
        source="hi",
        held_out=False,
        num_tokens=100,
        num_documents=10,
        bin_bytes=200,
        idx_bytes=242,
        bin_xxh3=f"{number:032x}",
        idx_xxh3=f"{number + 1:032x}",
    )
    return base._replace(**changes)


def manifest(*entries: ShardEntry, **changes) -> Manifest:
    fields = {
        "dataset_id": dataset_id("f00", entries),
        "tool_version": "0.1.0",
        "created": "2026-01-01T00:00:00Z",
        "tokenizer": TokenizerEntry(fingerprint="f00", vocab_size=32_000, eos_id=2, bos_id=1),
        "dtype": "uint16",
        "sources": ("hi", "en"),
        "shards": entries,
        "settings": {"weights": {"hi": 0.5, "en": 0.5}, "text": "हिन्दी"},
    }
    return Manifest(**(fields | changes))


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def edit(folder: Path, change, *, resign: bool = True) -> None:
    """Edit the JSON; with `resign` the checksum is made right again, as a careful forger would."""
    path = folder / "dataset.json"
    found = json.loads(path.read_text())
    change(found)
    found.pop("checksum", None)
    body = json.dumps(found)[:-1].encode()
    checksum = xxhash.xxh3_128_hexdigest(body) if resign else "0" * 32
    path.write_bytes(body + f',\n"checksum": "{checksum}"\n}}\n'.encode())


def test_write_then_read_is_the_identity(tmp_path):
    written = manifest(entry(0), entry(1, held_out=True), entry(2, source="en"), rejects={"bad-json": 2}, seed=5)
    path = write_manifest(tmp_path, written)
    assert path == tmp_path / "dataset.json"
    assert read_manifest(tmp_path) == written
    assert names(tmp_path) == ["dataset.json"]


def test_equal_manifests_give_equal_bytes_and_one_shard_a_line(tmp_path):
    one = manifest(entry(0), entry(1), settings={"a": 1, "b": {"c": 2, "d": 3}})
    two = manifest(entry(0), entry(1), settings={"b": {"d": 3, "c": 2}, "a": 1})
    first = write_manifest(tmp_path / "one", one).read_bytes()
    assert first == write_manifest(tmp_path / "two", two).read_bytes()
    assert len(re.findall(rb'^\{"name": "shards/', first, re.MULTILINE)) == 2


def test_dataset_id_is_the_specified_hash():
    # Computed by hand from docs/format.md with sha256sum.
    entries = (entry(0), entry(1, held_out=True))
    text = "tokpipe dataset 1\0f00\n"
    text += f"hi\0training\0{0:032x}\0{1:032x}\nhi\0held-out\0{1:032x}\0{2:032x}\n"
    assert dataset_id("f00", entries) == hashlib.sha256(text.encode()).hexdigest()[:32]
    assert dataset_id("f00", entries) == "d9bbf3c6173ff0408c77770ccdf07908"


def test_dataset_id_depends_on_content_and_order_alone():
    base = dataset_id("f00", [entry(0), entry(1)])
    assert base == dataset_id("f00", [entry(0, name="elsewhere/x"), entry(1)])
    others = {
        dataset_id("f01", [entry(0), entry(1)]),
        dataset_id("f00", [entry(1), entry(0)]),
        dataset_id("f00", [entry(0)]),
        dataset_id("f00", [entry(0, source="en"), entry(1)]),
        dataset_id("f00", [entry(0, held_out=True), entry(1)]),
        dataset_id("f00", [entry(0, bin_xxh3="a" * 32), entry(1)]),
        dataset_id("f00", [entry(0, idx_xxh3="a" * 32), entry(1)]),
    }
    assert len(others | {base}) == 8


def test_a_failed_write_leaves_the_old_manifest(tmp_path, monkeypatch):
    old = manifest(entry(0))
    write_manifest(tmp_path, old)

    def fail(descriptor):
        raise OSError("disk on fire")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk on fire"):
        write_manifest(tmp_path, manifest(entry(1)))
    assert read_manifest(tmp_path) == old
    assert names(tmp_path) == ["dataset.json"]


def test_what_would_not_be_read_is_not_written(tmp_path):
    with pytest.raises(ManifestError, match="dataset id"):
        write_manifest(tmp_path, manifest(entry(0), dataset_id="0" * 32))
    for bad in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(ManifestError, match="Settings must be plain JSON"):
            write_manifest(tmp_path, manifest(entry(0), settings=bad))
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_tokens": 101}, "bin_bytes 200, but 101 uint16 tokens take 202"),
        ({"bin_bytes": 400}, "bin_bytes 400, but 100 uint16 tokens take 200"),
        ({"num_documents": 11}, "idx_bytes 242, but 11 documents take 262"),
        ({"idx_bytes": 240}, "idx_bytes 240, but 10 documents take 242"),
        ({"num_documents": 0}, "0 documents, a shard has 1 to"),
        ({"num_tokens": 9, "bin_bytes": 18}, "9 tokens in 10 documents"),
        ({"source": "ta"}, r"source 'ta' is not among the manifest's sources \['en', 'hi'\]"),
        ({"name": "../x"}, "points out of the dataset folder"),
        ({"name": "/etc/x"}, "points out of the dataset folder"),
        ({"name": "shards/hi-00001-000"}, "is listed twice"),
        ({"bin_xxh3": "xyz"}, "32 hex digits"),
        ({"num_tokens": 100.0}, "num_tokens is 100.0, a wrong type"),
        ({"held_out": 0}, "held_out is 0, a wrong type"),
        ({"bin_xxh3": "b" * 32}, "says dataset id .* give"),
        ({"held_out": True}, "says dataset id .* give"),
    ],
)
def test_an_edited_shard_row_is_refused(tmp_path, changes, message):
    write_manifest(tmp_path, manifest(entry(0), entry(1)))
    edit(tmp_path, lambda found: found["shards"][0].update(changes))
    with pytest.raises(ManifestError, match=message) as caught:
        read_manifest(tmp_path)
    assert str(tmp_path / "dataset.json") in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(version=2), "manifest version 2, this tokpipe reads version 1.*written by tokpipe 0.1.0"),
        (lambda m: m.pop("version"), 'an object with "version" and "shards" is expected'),
        (lambda m: m.pop("seed"), "lacks seed"),
        (lambda m: m.update(note="mine"), "does not know: note"),
        (lambda m: m.update(seed="x"), "seed is 'x', a wrong type"),
        (lambda m: m.update(seed=True), "seed is True, a wrong type"),
        (lambda m: m.update(sources=[["hi"]]), r"sources is \[\['hi'\]\], expected names"),
        (lambda m: m.update(dtype="uint8"), "dtype 'uint8', expected one of"),
        (lambda m: m.update(dtype="int32"), "dtype int32 with a vocabulary of 32,000, expected uint16"),
        (lambda m: m["tokenizer"].update(vocab_size=0), "vocab_size 0, expected 1"),
        (lambda m: m["tokenizer"].update(eos_id=32_000), "eos_id 32,000 is not below vocab_size 32,000"),
        (lambda m: m["tokenizer"].update(bos_id=-1), "bos_id -1 is not below"),
        (lambda m: m["tokenizer"].update(bos_id=None, prepend_bos=True), "prepend_bos is true but"),
        (lambda m: m["tokenizer"].update(path="../../model"), "tokenizer.path .* points out"),
        (lambda m: m["tokenizer"].pop("path"), "tokenizer: lacks path"),
        (lambda m: m["tokenizer"].update(fingerprint="other"), "says dataset id .* give"),
        (lambda m: m["shards"].reverse(), "says dataset id .* give"),
        (lambda m: m["shards"][0].pop("source"), 'row of "shards" has other fields'),
        (lambda m: m["shards"][0].update(extra=1), 'row of "shards" has other fields'),
        (lambda m: m.update(shards=[1]), 'row of "shards" has other fields'),
    ],
)
def test_an_edited_manifest_is_refused(tmp_path, change, message):
    write_manifest(tmp_path, manifest(entry(0), entry(1)))
    edit(tmp_path, change)
    with pytest.raises(ManifestError, match=message):
        read_manifest(tmp_path)


def test_an_edit_that_contradicts_nothing_is_found_by_the_checksum(tmp_path):
    path = write_manifest(tmp_path, manifest(entry(0)))
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ManifestError, match="was changed after it was written"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("keep", [0, 1, 100, -3])
def test_a_truncated_manifest_is_refused(tmp_path, keep):
    path = write_manifest(tmp_path, manifest(entry(0)))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ManifestError, match="is not whole JSON"):
        read_manifest(tmp_path)


def test_json_that_is_no_manifest_is_refused(tmp_path):
    (tmp_path / "dataset.json").write_text("[1, 2]")
    with pytest.raises(ManifestError, match="is not a dataset manifest"):
        read_manifest(tmp_path)


def test_a_missing_manifest_says_which_of_three_things_is_wrong(tmp_path):
    with pytest.raises(ManifestError, match="there is no such folder"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(ManifestError, match="so this is no dataset"):
        read_manifest(tmp_path)
    (tmp_path / "build").mkdir()
    with pytest.raises(ManifestError, match=r"the build is not finished.*Run the same command again"):
        read_manifest(tmp_path)
    (tmp_path / "dataset.json").mkdir()
    with pytest.raises(ManifestError, match="cannot be read"):
        read_manifest(tmp_path)


def test_every_field_is_in_the_specification():
    spec = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    names = [field.name for field in dataclasses.fields(Manifest)]
    assert [name for name in names if f"| `{name}` |" not in spec and name not in ("tokenizer", "shards")] == []
    assert [name for name in TokenizerEntry.__dataclass_fields__ if f"`tokenizer.{name}`" not in spec] == []
    assert [name for name in ShardEntry._fields if f"`shards[].{name}`" not in spec and f"`.{name}`" not in spec] == []
