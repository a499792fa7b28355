"""What is found, what is passed over, and what is refused before the work starts."""

from __future__ import annotations

import os

import datasets
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokpipe.corpus import CorpusConfig, Inventory, RejectLog, plan_splits, read_inventory, read_split
from tokpipe.errors import CorpusError, MissingColumnError, UnreadableFileError


def listed(inventory, *columns):
    rows = inventory.table.select(list(columns)).to_pylist()
    return [tuple(row.values()) for row in rows]


def read_texts(location, **settings):
    config = CorpusConfig(corpus=str(location), **settings)
    splits = plan_splits(read_inventory(config), split_bytes=config.split_bytes)
    return [text for split in splits for batch in read_split(split, config, RejectLog()) for text in batch.texts.to_pylist()]


def test_read_inventory_is_sorted_and_lists_what_it_ignores(corpus):
    for name in ("b/z.txt", "b/a.txt.gz", "a.jsonl", "a/x.csv", "B/x.txt", "note.html", ".hidden.txt", ".git/a.txt", "b/._a.txt"):
        corpus.write(name, "{}\n" if name == "a.jsonl" else "x")
    corpus.write("a.jsonl", '{"text": "x"}')
    inventory = read_inventory(CorpusConfig(corpus=str(corpus.folder)))
    assert listed(inventory, "path", "source", "num_bytes", "format", "compression") == [
        ("B/x.txt", "B", 1, "text", ""),
        ("a.jsonl", "a", 13, "jsonl", ""),
        ("a/x.csv", "a", 1, "csv", ""),
        ("b/a.txt.gz", "b", 1, "text", "gz"),
        ("b/z.txt", "b", 1, "text", ""),
    ]
    assert inventory.ignored == (".git/a.txt", ".hidden.txt", "b/._a.txt", "note.html")
    assert inventory.sources == ("B", "a", "b") and inventory.num_bytes == 17 and len(inventory) == 5


def test_the_magic_of_a_large_file_decides_whether_it_is_cut(corpus, compress):
    corpus.write("packed.jsonl", compress["gz"](os.urandom(50).hex().encode()))
    corpus.write("plain.jsonl.gz", '{"text": "x"}\n' * 20)
    inventory = read_inventory(CorpusConfig(corpus=str(corpus.folder), split_bytes=50, sources=(("s", "*"),)))
    assert listed(inventory, "path", "compression") == [("packed.jsonl", "gz"), ("plain.jsonl.gz", "")]
    assert len(plan_splits(inventory, split_bytes=50)) == 7


def test_one_file_is_a_corpus(corpus):
    path = corpus.write("hi-00001-of-00002.jsonl", '{"text": "x"}')
    inventory = read_inventory(CorpusConfig(corpus=str(path)))
    assert listed(inventory, "path", "source") == [("hi-00001-of-00002.jsonl", "hi")]
    assert read_texts(path) == ["x"]


@pytest.mark.parametrize("location", ["/nowhere/at/all", "memory://nowhere", "nosuchprotocol://x", "file:///nowhere/x"])
def test_a_corpus_that_is_not_there_is_an_error_that_names_it(location):
    with pytest.raises(CorpusError, match=r"nowhere|nosuchprotocol"):
        read_inventory(CorpusConfig(corpus=location))


def test_a_folder_of_nothing_readable_says_what_it_found(corpus):
    corpus.write("a.html", "x")
    with pytest.raises(CorpusError, match=r"none of its 1 files can be read\. Expected \.txt.*found e\.g\. a\.html"):
        read_inventory(CorpusConfig(corpus=str(corpus.folder)))


def test_an_override_that_matches_nothing_is_an_error(corpus):
    corpus.write("hi/a.txt", "x")
    with pytest.raises(CorpusError, match=r"--source hi=\*\.csv: no file under"):
        read_inventory(CorpusConfig(corpus=str(corpus.folder), sources=(("hi", "*.csv"),)))


def test_a_source_passes_if_any_early_record_has_the_column(corpus):
    corpus.write("s/a.jsonl", '{"x": 1}\n')
    corpus.write("s/b.jsonl", '\n{"x": 1}\nbroken\n')
    assert len(read_inventory(CorpusConfig(corpus=str(corpus.folder)))) == 2
    corpus.write("s/b.jsonl", '\n{"x": 1}\n{"y": 2}')
    with pytest.raises(MissingColumnError, match=r"s/a\.jsonl: no 'text'; keys: 'x'\. No record"):
        read_inventory(CorpusConfig(corpus=str(corpus.folder)))


def test_symbolic_links_are_followed_but_not_in_circles(corpus):
    corpus.write("hi/a.txt", "x")
    (corpus.folder / "loop").symlink_to(corpus.folder)
    (corpus.folder / "en").symlink_to(corpus.folder / "hi")
    inventory = read_inventory(CorpusConfig(corpus=str(corpus.folder)))
    assert listed(inventory, "path") == [("en/a.txt",), ("hi/a.txt",)]


def test_a_dangling_link_is_an_error_that_names_it(corpus):
    corpus.write("a.txt", "x")
    (corpus.folder / "deep" / "down").mkdir(parents=True)
    (corpus.folder / "deep" / "down" / "b.txt").symlink_to("gone")
    with pytest.raises(UnreadableFileError, match=r"deep/down/b\.txt: cannot be listed \(No such file or directory\)\. Mend"):
        read_inventory(CorpusConfig(corpus=str(corpus.folder)))


def test_a_name_that_is_not_utf8_is_refused_or_listed_as_ignored(corpus):
    corpus.write("s/a.txt", "x")
    (corpus.folder / os.fsdecode(b"s/\xff.pdf")).write_bytes(b"")
    assert read_inventory(CorpusConfig(corpus=str(corpus.folder))).ignored == (r"s/\udcff.pdf",)
    (corpus.folder / os.fsdecode(b"s/\xff.txt")).write_bytes(b"x")
    with pytest.raises(CorpusError, match=r"s/\\udcff\.txt': the file's name is not UTF-8\. Rename"):
        read_inventory(CorpusConfig(corpus=str(corpus.folder)))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.jsonl.gz", "a.parquet", "a.arrow", "a.csv", "a.txt"])
def test_urls_read_like_files(corpus, name):
    texts = [f"text {i} हिन्दी" for i in range(50)]
    path = corpus.write(name, "हिन्दी") if name == "a.txt" else corpus.write_texts(name, texts)
    expected = read_texts(corpus.folder)
    memory = fsspec.filesystem("memory")
    memory.pipe("/raw/s/" + name, path.read_bytes())
    try:
        for split_bytes in (500, 1 << 30):
            assert read_texts("memory://raw", split_bytes=split_bytes) == expected
            assert read_texts(f"memory://raw/s/{name}", split_bytes=split_bytes) == expected
            assert read_texts(f"file://{corpus.folder}", split_bytes=split_bytes) == expected
        inventory = read_inventory(CorpusConfig(corpus="memory://raw/"))
        assert listed(inventory, "path", "source") == [(f"s/{name}", "s")] and inventory.table["stamp"][0].as_py()
    finally:
        memory.rm("/raw", recursive=True)


def test_inventory_survives_writing_and_knows_a_moved_corpus(corpus, tmp_path):
    corpus.write("hi/a.txt", "x")
    corpus.write("b.bin", "x")
    inventory = read_inventory(CorpusConfig(corpus=str(corpus.folder)))
    inventory.write(tmp_path / "inventory.arrow")
    again = Inventory.read(tmp_path / "inventory.arrow")
    assert again.root == inventory.root and again.ignored == ("b.bin",)
    assert again.fingerprint() == inventory.fingerprint() and not list(again.diff(inventory))
    moved = corpus.folder.rename(tmp_path / "moved")
    assert read_inventory(CorpusConfig(corpus=str(moved))).fingerprint() == inventory.fingerprint()


def test_inventory_read_refuses_other_files(tmp_path):
    (tmp_path / "x").write_bytes(b"no inventory")
    with pytest.raises(CorpusError, match="not an inventory"):
        Inventory.read(tmp_path / "x")
    with pytest.raises(CorpusError, match="not an inventory"):
        Inventory.read(tmp_path / "gone")


def test_inventory_diff_says_what_changed(corpus):
    for name in ("hi/a.txt", "hi/b.txt", "hi/c.txt"):
        corpus.write(name, "x")
    config = CorpusConfig(corpus=str(corpus.folder))
    before = read_inventory(config)
    stamp = (corpus.folder / "hi/a.txt").stat().st_mtime_ns
    corpus.write("hi/a.txt", "longer")
    os.utime(corpus.folder / "hi/a.txt", ns=(stamp + 5, stamp + 5))
    (corpus.folder / "hi/b.txt").unlink()
    corpus.write("en/d.txt", "x")
    after = read_inventory(config)
    assert list(before.diff(after)) == [
        "+ en/d.txt: new",
        f"~ hi/a.txt: num_bytes 1 -> 6, stamp {stamp} -> {stamp + 5}",
        "- hi/b.txt: gone",
    ]
    assert before.fingerprint() != after.fingerprint()
    lines = read_inventory(CorpusConfig(corpus=str(corpus.folder), text_documents="line"))
    assert next(iter(after.diff(lines))) == "~ en/d.txt: format text -> lines"


def test_a_saved_dataset_is_read_without_its_caches(corpus):
    data = datasets.Dataset.from_dict({"text": [f"t{i}" for i in range(30)]})
    folder = corpus.folder / "train"
    data.save_to_disk(folder, num_shards=3)
    pa_file = next(folder.glob("data-*.arrow"))
    (folder / "cache-0123456789.arrow").write_bytes(pa_file.read_bytes())
    inventory = read_inventory(CorpusConfig(corpus=str(corpus.folder)))
    assert listed(inventory, "path", "source") == [(f"train/data-0000{i}-of-00003.arrow", "train") for i in range(3)]
    assert "train/cache-0123456789.arrow" in inventory.ignored and "train/state.json" in inventory.ignored
    assert read_texts(corpus.folder) == [f"t{i}" for i in range(30)]
    # The folder itself is a corpus too; its files are numbered shards of one source.
    assert read_texts(folder) == [f"t{i}" for i in range(30)]
    pa_file.unlink()
    with pytest.raises(UnreadableFileError, match=r"state\.json: names train/data-.*not there"):
        read_inventory(CorpusConfig(corpus=str(corpus.folder)))


def test_a_saved_dataset_dict_has_a_source_a_split(corpus):
    data = datasets.DatasetDict({name: datasets.Dataset.from_dict({"text": [name] * 3}) for name in ("train", "test")})
    data.save_to_disk(corpus.folder)
    inventory = read_inventory(CorpusConfig(corpus=str(corpus.folder)))
    assert inventory.sources == ("test", "train")
    assert read_texts(corpus.folder) == ["test"] * 3 + ["train"] * 3


def test_hf_reads_a_named_dataset(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = corpus.folder / "books"
    folder.mkdir()
    for split in ("train", "test"):
        pq.write_table(pa.table({"text": [f"{split} {i}" for i in range(4)]}), folder / f"{split}.parquet")
    every = read_inventory(CorpusConfig(corpus=f"hf:{folder}"))
    assert len(every) == 2 and every.sources == ("books",)
    assert sorted(read_texts(f"hf:{folder}")) == [f"{s} {i}" for s in ("test", "train") for i in range(4)]
    assert read_texts(f"hf:{folder}:default:test") == [f"test {i}" for i in range(4)]
    assert read_inventory(CorpusConfig(corpus=f"hf:{folder}:default:test")).sources == ("books-default",)
    with pytest.raises(CorpusError, match="a slice of a split"):
        read_inventory(CorpusConfig(corpus=f"hf:{folder}:default:test[:1]"))
    with pytest.raises(CorpusError, match="`datasets` cannot load it"):
        read_inventory(CorpusConfig(corpus=f"hf:{folder}:default:nosuch"))
