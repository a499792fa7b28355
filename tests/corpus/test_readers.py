"""Every format gives its documents once, in order, wherever it is cut and wherever it is taken up again."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokpipe.corpus import (
    BEGINNING,
    CorpusConfig,
    Cursor,
    RejectLog,
    plan_splits,
    read_inventory,
    read_split,
    record_blocks,
    text_files,
)
from tokpipe.errors import CorpusError, UnreadableFileError

TEXTS = ["हिन्दी पाठ", 'a "quoted", line\nand another', "x\tक\u200dष", "\u0000nul", "last 😀", "ﷺ" * 50] * 9
ALL_NAMES = [
    f"a.{kind}{suffix}"
    for kind in ("jsonl", "csv", "tsv", "parquet", "arrow")
    for suffix in ("", ".gz", ".zst", ".bz2", ".xz")
    if not suffix or kind not in ("parquet", "arrow")
]


def without_nul(name, texts):
    return [text.replace("\0", "0") for text in texts] if "csv" in name or "tsv" in name else texts


@pytest.mark.parametrize("name", ALL_NAMES)
def test_read_split_gives_every_document_of_every_format(corpus, name):
    texts = without_nul(name, TEXTS)
    corpus.write_texts(name, texts)
    got, log = corpus.read()
    assert got == texts
    assert not log.counts and log.num_records == len(texts)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_read_split_goes_on_behind_any_cursor(corpus, small_blocks, batch_checker, name):
    texts = without_nul(name, TEXTS)
    corpus.write_texts(name.replace("a.", "s/a.", 1), texts)
    corpus.write_texts(name.replace("a.", "s/b.", 1), texts)
    config = CorpusConfig(corpus=str(corpus.folder))
    (split,) = plan_splits(read_inventory(config), split_bytes=1 << 30)
    whole = list(read_split(split, config, RejectLog()))
    assert len(whole) > 3
    for done, batch in enumerate(whole):
        batch_checker(batch)
        rest = list(read_split(split, config, RejectLog(), start=batch.cursor))
        assert [b.texts for b in rest] == [b.texts for b in whole[done + 1 :]]
        assert [b.cursor for b in rest] == [b.cursor for b in whole[done + 1 :]]
        assert [b.positions.tolist() for b in rest] == [b.positions.tolist() for b in whole[done + 1 :]]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.csv", "a.parquet", "a.arrow"])
def test_read_split_progress_adds_up_to_the_file(corpus, small_blocks, name):
    corpus.write_texts(name, without_nul(name, TEXTS))
    config = CorpusConfig(corpus=str(corpus.folder))
    (split,) = plan_splits(read_inventory(config), split_bytes=1 << 30)
    total = sum(batch.num_input_bytes for batch in read_split(split, config, RejectLog()))
    # An Arrow stream's schema and end mark belong to no record batch.
    assert split.num_bytes * 0.9 - 200 <= total <= split.num_bytes + 2


def test_place_names_the_file_and_position_of_each_document(corpus):
    corpus.write("s/a.jsonl", '{"text": "one"}\n{"text": ""}\n{"text": "two"}\n')
    corpus.write("s/b.jsonl", '{"text": "three"}\n')
    config = CorpusConfig(corpus=str(corpus.folder))
    (split,) = plan_splits(read_inventory(config), split_bytes=1 << 30)
    (batch,) = read_split(split, config, log := RejectLog())
    assert batch.texts.to_pylist() == ["one", "two", "three"]
    assert [batch.place(row) for row in range(3)] == ["s/a.jsonl, byte 0", "s/a.jsonl, byte 29", "s/b.jsonl, byte 0"]
    assert log.counts == {"empty": 1}


any_text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(any_text.filter(lambda t: t.strip()), max_size=30), split_bytes=st.integers(1, 400))
def test_json_lines_cut_anywhere_give_every_document_once(make_corpus, texts, split_bytes):
    corpus = make_corpus()
    corpus.write_texts("a.jsonl", ["first", *texts])
    got, log = corpus.read(split_bytes=split_bytes)
    assert got == [text.replace("\r\n", "\n").replace("\r", "\n") for text in ["first", *texts]]
    assert not log.counts


lines = st.lists(st.sampled_from(["a", "क ख", "", " ", "\t", "x" * 40, " y", "\u200d"]), min_size=1, max_size=40)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lines=lines, ends=st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=40, max_size=40), split_bytes=st.integers(1, 200),
    block=st.integers(1, 64),
)  # fmt: skip
@pytest.mark.parametrize("documents", ["line", "blank-line"])
def test_text_cut_anywhere_gives_every_document_once(make_corpus, monkeypatch, documents, lines, ends, split_bytes, block):
    corpus = make_corpus()
    # write_bytes, so that no line end is translated
    text = "".join(line + end for line, end in zip(lines, ends, strict=False))
    corpus.write("a.txt", "." + text)
    expected = ("." + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if documents == "line":
        expected = [line for line in expected if line.strip()]
    else:
        paragraphs = [[]]
        for line in expected:
            if line.strip():
                paragraphs[-1].append(line)
            elif paragraphs[-1]:
                paragraphs.append([])
        expected = ["\n".join(p) for p in paragraphs if p]
    with monkeypatch.context() as patch:
        patch.setattr(record_blocks, "BLOCK_BYTES", block)
        patch.setattr(record_blocks, "_LOOK_PAST_BYTES", 8)
        got, _ = corpus.read(split_bytes=split_bytes, text_documents=documents)
    assert got == expected


@pytest.mark.parametrize("documents", ["line", "blank-line"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_text_goes_on_behind_any_cursor(corpus, small_blocks, compress, documents, suffix):
    data = "".join(f"line {i} {'य' * (i % 40)}\r\n" + ("\r\n" if i % 3 == 0 else "") for i in range(300)).encode()
    corpus.write("a.txt" + suffix, compress[suffix[1:]](data) if suffix else data)
    config = CorpusConfig(corpus=str(corpus.folder), text_documents=documents)
    (split,) = plan_splits(read_inventory(config), split_bytes=1 << 30)
    whole = list(read_split(split, config, log := RejectLog()))
    assert len(whole) > 10
    for done, batch in enumerate(whole):
        rest = [b.texts for b in read_split(split, config, RejectLog(), start=batch.cursor)]
        assert rest == [b.texts for b in whole[done + 1 :]]
    if documents == "line":
        assert log.blank == 100


def test_a_blank_line_has_a_longest_length(corpus):
    corpus.write("a.txt", "one\n" + " " * 1024 + "\ntwo\n" + " " * 1025 + "\nthree\n")
    for split_bytes in (1 << 20, 1000, 100, 7):
        got, _ = corpus.read(text_documents="blank-line", split_bytes=split_bytes)
        assert got == ["one", "two\n" + " " * 1025 + "\nthree"]


def test_a_record_longer_than_a_block_is_read_whole(corpus, small_blocks):
    texts = ["short", "ल" * 5000, "end"]
    corpus.write_texts("a.jsonl", texts)
    assert corpus.read()[0] == texts
    assert corpus.read(split_bytes=50)[0] == texts


def test_a_file_document_keeps_its_bytes_but_for_mark_and_line_ends(corpus):
    corpus.write("a.txt", b"\xef\xbb\xbf\xef\xbb\xbfa\r\nb\rc\r\r\nd\0 \n\n")
    assert corpus.read()[0] == ["\ufeffa\nb\nc\n\nd\0 \n\n"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.arrow", "a.tsv.gz"])
def test_line_ends_become_lf_in_every_format(corpus, name):
    corpus.write_texts(name, ["a\r\nb\rc\r"])
    assert corpus.read()[0] == ["a\nb\nc\n"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt"])
def test_a_mark_at_the_start_is_dropped(corpus, name):
    body = {"a.jsonl": '{"text": "x"}\n', "a.csv": "text\nx\n", "a.txt": "x"}[name]
    corpus.write(name, b"\xef\xbb\xbf" + body.encode())
    got, log = corpus.read()
    assert got == ["x"] and not log.counts


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff", b""])
def test_utf16_is_refused_with_its_own_reason(corpus, mark):
    data = mark + ("यह एक परीक्षण है। " * 5).encode("utf-16-le" if mark == b"\xff\xfe" else "utf-16-be")
    corpus.write("a.txt", data)
    got, log = corpus.read()
    assert not got and log.counts == {"utf16": 1}
    with pytest.raises(UnreadableFileError, match=r"a\.txt: is UTF-16"):
        corpus.read(text_documents="line")
    corpus.write("a.txt", "col\tcol\t0\t1\n" * 20)
    assert corpus.read()[1].counts == {}


def test_a_file_document_above_the_limit_names_the_other_ways(corpus):
    with corpus.write("a.txt", "x").open("r+b") as file:
        file.truncate((1 << 30) + 1)
    with pytest.raises(CorpusError, match="--text-documents line` or `--text-documents blank-line"):
        corpus.read()


def test_a_compressed_document_above_the_limit_is_an_error(corpus, compress, monkeypatch):
    monkeypatch.setattr(text_files, "FILE_DOCUMENT_LIMIT_BYTES", 1000)
    corpus.write("a.txt.gz", compress["gz"](b"x" * 1000))
    assert corpus.read()[0] == ["x" * 1000]
    corpus.write("a.txt.gz", compress["gz"](b"x" * 1001))
    with pytest.raises(UnreadableFileError, match=r"a\.txt\.gz: 1,001 bytes or more are too many for one document"):
        corpus.read()


def test_a_file_document_that_changed_since_the_plan_is_an_error(corpus):
    corpus.write("a.txt", "abc")
    config = CorpusConfig(corpus=str(corpus.folder))
    (split,) = plan_splits(read_inventory(config), split_bytes=10)
    for data in ("ab", "abcd"):
        corpus.write("a.txt", data)
        with pytest.raises(UnreadableFileError, match="not the 3 bytes it was planned with"):
            list(read_split(split, config, RejectLog()))


def test_empty_files_hold_nothing(corpus, compress):
    for name in ("a.txt", "b.jsonl", "c.csv", "d.jsonl.zst", "e.parquet", "f.arrow"):
        corpus.write(name, b"")
    corpus.write("g.jsonl.gz", compress["gz"](b""))
    corpus.write("h.csv.zst", compress["zst"](b"text\n"))
    got, log = corpus.read()
    assert not got and not log.counts and log.num_records == 0


def test_a_record_of_endless_length_is_an_error_that_says_where(corpus, small_blocks, monkeypatch):
    monkeypatch.setattr(record_blocks, "MAX_RECORD_BYTES", 2000)
    corpus.write_texts("a.jsonl", ["fine", "x" * 1900])
    assert len(corpus.read()[0]) == 2
    corpus.write_texts("a.jsonl", ["fine", "x" * 3000])
    with pytest.raises(UnreadableFileError, match=r"a\.jsonl: the record at byte 26 is longer than 2,000 bytes"):
        corpus.read()


def test_a_compressed_file_in_place_of_a_plain_one_is_an_error(corpus, compress):
    path = corpus.write_texts("a.jsonl", TEXTS)
    config = CorpusConfig(corpus=str(corpus.folder))
    splits = plan_splits(read_inventory(config), split_bytes=1000)
    path.write_bytes(compress["gz"](path.read_bytes()))
    with pytest.raises(UnreadableFileError, match="planned as a plain file, but it is compressed now"):
        list(read_split(splits[0], config, RejectLog()))


def test_rejects_come_out_with_the_batch_they_precede(corpus, small_blocks):
    lines = ['{"text": "%s"}' % ("y" * 60) if i % 5 else "broken" for i in range(200)]
    corpus.write("a.jsonl", "\n".join(lines))
    config = CorpusConfig(corpus=str(corpus.folder))
    (split,) = plan_splits(read_inventory(config), split_bytes=1 << 30)
    total = RejectLog()
    list(read_split(split, config, total))
    assert total.counts == {"bad_json": 40} and total.num_records == 200
    log = RejectLog()
    for batch in read_split(split, config, log):
        rest = RejectLog()
        list(read_split(split, config, rest, start=batch.cursor))
        assert log.num_records + rest.num_records == 200
        assert log.num_rejects + rest.num_rejects == 40


def test_batches_are_bounded_and_never_mix_bytes_and_rows(corpus, small_blocks, batch_checker):
    for number in range(6):
        corpus.write_texts(f"s/{number}.{'csv' if number % 2 else 'jsonl'}", ["short", "also short"])
    for number in range(40):
        corpus.write(f"s/{number}.txt", "x" * 100)
    config = CorpusConfig(corpus=str(corpus.folder))
    (split,) = plan_splits(read_inventory(config), split_bytes=1 << 30)
    found = list(read_split(split, config, RejectLog()))
    assert all(batch.texts.nbytes <= 720 for batch in found) and max(len(batch.paths) for batch in found) > 4
    for batch in found:
        rows_in_files = {path.endswith(".csv") for path in batch.paths}
        assert rows_in_files == {batch.position_unit == "row"}


def test_a_cursor_at_the_end_reads_nothing(corpus):
    corpus.write_texts("a.jsonl", ["x"])
    config = CorpusConfig(corpus=str(corpus.folder))
    (split,) = plan_splits(read_inventory(config), split_bytes=1 << 30)
    (batch,) = read_split(split, config, RejectLog(), start=BEGINNING)
    assert not list(read_split(split, config, RejectLog(), start=batch.cursor))
    assert not list(read_split(split, config, RejectLog(), start=Cursor(1, 0)))
