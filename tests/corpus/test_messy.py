"""The awkward files: each gives what a careful reader should give."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest

from tokpipe.errors import MissingColumnError, UnreadableFileError

# file -> (documents, rejects by reason); the documents are checked against expected.json where it has them.
RESULTS = {
    "01_crlf_hi.txt": (1, {}),
    "02_utf8_bom_hi.txt": (1, {}),
    "03_utf16le_bom_hi.txt": (0, {"utf16": 1}),
    "04_utf16be_nobom_hi.txt": (0, {"utf16": 1}),
    "05_latin1_en.txt": (0, {"invalid_utf8": 1}),
    "06_cp1252_smart_quotes_en.txt": (0, {"invalid_utf8": 1}),
    "07_iscii91_hi.txt": (0, {"invalid_utf8": 1}),
    "09_krutidev_hi.txt": (0, {"invalid_utf8": 1}),
    "10_nul_bytes_hi.txt": (1, {}),
    "12_mojibake_double_encoded_hi.txt": (1, {}),  # valid text to a reader; a language filter's to find
    "20_bad_lines.jsonl": (
        8,
        {
            "bad_json": 4,
            "empty": 2,
            "lone_surrogate": 2,
            "missing_text": 1,
            "not_a_string": 3,
            "not_an_object": 2,
            "null_text": 1,
        },
    ),
    "22_duplicates_and_near.jsonl": (7, {}),
    "30_zwj_zwnj_hi.jsonl": (6, {}),
    "31_nukta_nfc_hi.jsonl": (7, {}),
    "32_digits_danda_hi.txt": (1, {}),
    "33_emoji_hi_mix.txt": (1, {}),
    "34_urdu_rtl_mix.txt": (1, {}),
    "37_special_token_strings.jsonl": (23, {}),
    "38_whitespace.txt": (1, {}),
    "39_html_entities_and_markup_hi.txt": (1, {}),
    "53_multiframe.jsonl.zst": (60, {}),
    "58_empty.jsonl.gz": (0, {}),
    "57_empty.txt": (0, {}),
    "59_zero_bytes.jsonl.zst": (0, {}),
    "60_single_line_5mb_hi.txt.zst": (1, {}),
    "70_content_large_string_nulls.parquet": (60, {"null_text": 10}),
    "71_nested.parquet": (19, {"null_text": 1}),
    "73_zero_rows.parquet": (0, {}),
    "80_codemixed_three_scripts.jsonl": (32, {}),
}
ERRORS = {
    "50_truncated.jsonl.gz": "truncated or damaged at byte 84,331 of the file",
    "51_truncated.jsonl.zst": "truncated or damaged at byte",
    "55_trailing_garbage.jsonl.gz": "truncated or damaged at byte 11,156 of the file",
    "74_truncated.parquet": "cannot be read as Parquet",
}
COLUMNS = {"70_content_large_string_nulls.parquet": "content", "71_nested.parquet": "body.text"}


@pytest.fixture
def take(corpus, shared_messy):
    """Put one awkward file into the corpus."""

    def copy(name):
        return shutil.copy(shared_messy / name, corpus.folder)

    return copy


def test_every_awkward_file_is_covered(shared_messy):
    names = {path.name for path in shared_messy.iterdir()} - {"README.md", "expected.json"}
    # The HTML page is ignored by its extension.
    assert names - {"08_shusha_legacy_font_hi.html"} == RESULTS.keys() | ERRORS.keys()
    assert len(names) == 34


@pytest.mark.parametrize("name", RESULTS)
def test_an_awkward_file_gives_its_documents_and_rejects(corpus, take, shared_messy, name):
    take(name)
    got, log = corpus.read(text_column=COLUMNS.get(name, "text"))
    assert (len(got), log.counts) == RESULTS[name]
    expected = json.loads((shared_messy / "expected.json").read_text(encoding="utf-8")).get(name, {})
    if "text_lf_sha256" in expected and got:
        assert hashlib.sha256(got[0].encode()).hexdigest() == expected["text_lf_sha256"]
    if "docs" in expected:
        assert len(got) == expected["docs"]
    if "nulls" in expected:
        assert log.counts["null_text"] == expected["nulls"]
    if "nul_count" in expected:
        assert got[0].count("\0") == expected["nul_count"]
    if "utf8_bytes" in expected:
        assert len(got[0].encode()) == expected["utf8_bytes"]
    if "lines" in expected:
        assert log.num_records + log.blank == expected["lines"]


@pytest.mark.parametrize("name", ERRORS)
def test_a_damaged_file_is_an_error_that_says_where(corpus, take, name):
    take(name)
    with pytest.raises(UnreadableFileError, match=f"{name}: .*{ERRORS[name]}"):
        corpus.read()


@pytest.mark.parametrize("name", COLUMNS)
def test_a_file_without_the_column_lists_its_columns(corpus, take, name):
    take(name)
    with pytest.raises(MissingColumnError, match=f"no column 'text'.*{COLUMNS[name]}"):
        corpus.read()


def test_the_good_records_among_bad_ones_stay(corpus, take, shared_messy):
    take("20_bad_lines.jsonl")
    expected = json.loads((shared_messy / "expected.json").read_text(encoding="utf-8"))["20_bad_lines.jsonl"]
    texts = {}
    for line in (corpus.folder / "20_bad_lines.jsonl").read_bytes().split(b"\n"):
        try:
            record = json.loads(line)
            texts[record["id"]] = record["text"]
        except (ValueError, KeyError, TypeError):
            continue
    kept = [*expected["clean_ids"], "dup-key", "nan", "nul-escape"]
    for split_bytes in (1 << 30, 1000, 64):
        got, _ = corpus.read(split_bytes=split_bytes)
        assert sorted(got) == sorted(texts[name] for name in kept)
