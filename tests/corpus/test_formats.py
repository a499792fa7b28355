from __future__ import annotations

import pytest

from tokpipe.corpus.formats import FileKind, compression_of_magic, kind_of_name, source_of_path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", FileKind("text", "")),
        ("a.TXT.GZ", FileKind("text", "gz")),
        ("x/y.z/a.jsonl.zst", FileKind("jsonl", "zst")),
        ("a.ndjson", FileKind("jsonl", "")),
        ("a.json.bz2", FileKind("json", "bz2")),
        ("a.csv.xz", FileKind("csv", "xz")),
        ("a.parquet", FileKind("parquet", "")),
        ("a.arrow", FileKind("arrow", "")),
        ("a.parquet.gz", None),  # needs random access
        ("a.arrow.zst", None),
        ("a.html", None),
        ("a.gz", None),  # nothing says what is inside
        ("txt", None),
        ("README", None),
        ("a.txt/b", None),
    ],
)
def test_kind_of_name_is_told_by_the_extensions(name, kind):
    assert kind_of_name(name) == kind


def test_kind_of_name_says_how_a_txt_is_divided():
    assert [kind_of_name("a.txt", text_documents=d).format for d in ("file", "line", "blank-line")] == [
        "text",
        "lines",
        "paragraphs",
    ]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("hi/a.txt", "hi"),
        ("hi/2024/en/a.txt", "hi"),
        ("hi.jsonl.zst", "hi"),
        ("hi-00017-of-01000.parquet", "hi"),
        ("hi_3_of_10.jsonl", "hi"),
        ("hi.00017.txt", "hi"),
        ("hi_00017.txt.gz", "hi"),
        ("hi-2024.txt", "hi-2024"),  # four digits are a year
        ("hi-12345-67890.txt", "hi-12345"),  # one number is taken off, not all
        ("hi.v2.txt", "hi.v2"),
        ("hi.TXT", "hi"),
        ("00017.txt", "main"),
        ("00017-of-00020.parquet", "main"),
        ("_00017.txt", "main"),
        ("हिन्दी.txt", "हिन्दी"),
    ],
)
def test_source_of_path(path, source):
    assert source_of_path(path) == source


def test_source_of_path_takes_the_first_override_that_matches():
    overrides = (("code", "*.py.txt"), ("other", "en/*"), ("late", "*"))
    assert source_of_path("en/x/a.py.txt", overrides) == "code"
    assert source_of_path("en/x/a.txt", overrides) == "other"
    assert source_of_path("hi/a.txt", overrides) == "late"


@pytest.mark.parametrize("head", [b"", b"\x1f", b"BZh", b"(\xb5/", b"BZh9 text", b"Q*M", b"\xfd7zXZ"])
def test_compression_of_magic_needs_the_whole_magic(head):
    assert compression_of_magic(head) == ""
