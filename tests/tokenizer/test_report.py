"""The report's numbers on a text small enough to count by hand."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tokpipe.tokenizer.encoders import SentencePieceEncoder
from tokpipe.tokenizer.report import TextStats, format_report, report_tokenizers


def column(*texts: str) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


@pytest.fixture(scope="module")
def encoder(small_model):
    return SentencePieceEncoder(small_model)


def test_stats_add_up_to_rates():
    stats = TextStats(documents=1, text_bytes=30, characters=20, words=4, tokens=8, byte_tokens=4, line_tokens=1)
    both = stats + TextStats(tokens=2, unknown_tokens=1)
    assert both.tokens == 10 and both.documents == 1
    assert both.rates() == {
        "tokens_per_word": 2.5,
        "bytes_per_token": 3.0,
        "characters_per_token": 2.0,
        "byte_rate": 0.4,
        "byte_rate_without_lines": 0.3,
        "unknown_rate": 0.1,
    }
    assert set(TextStats().rates().values()) == {0.0}


def test_report_counts_by_source_and_script(encoder):
    texts = column("un कि\n", "20 \t un")
    batches = [("a", texts), ("b", column("कि 😺")), ("a", column("un"))]
    (report,) = report_tokenizers([encoder], batches)
    a, b = report.by_source["a"], report.by_source["b"]
    assert (a.documents, a.words, a.text_bytes) == (3, 5, 19) and (b.documents, b.words, b.characters) == (1, 2, 4)
    assert a.tokens == sum(len(encoder.tokenizer.encode(text)) for text in ["un कि\n", "20 \t un", "un"])
    assert (a.byte_tokens, a.line_tokens) == (2, 2)  # the newline and the tab
    assert (b.byte_tokens, b.line_tokens, b.unknown_tokens) == (4, 0, 0)  # the cat's four bytes
    words = {name: stats.words for name, stats in report.by_script.items()}
    assert words == {"latin": 3, "devanagari": 2, "other": 2}
    assert report.by_script["latin"].tokens == len(encoder.tokenizer.encode("un un")) + len(encoder.tokenizer.encode("un"))


def test_report_describes_the_vocabulary(encoder):
    (report,) = report_tokenizers([encoder], [("a", column("un"))])
    assert sum(report.vocabulary.values()) == report.vocab_size == 1500
    assert report.vocabulary["bytes"] == 256 and report.vocabulary["special"] == 4 and report.vocabulary["devanagari"] > 300
    assert report.missing_characters == ()
    lengths = [len(piece) for piece in report.longest]
    assert len(lengths) == 10 and lengths == sorted(lengths, reverse=True) and lengths[0] > 8
    assert 1500 - 260 - 3 <= report.never_used <= 1500 - 260 - 1


def test_table_sets_tokenizers_side_by_side(encoder):
    reports = report_tokenizers([encoder, encoder], [("web", column("un कि"))])
    lines = format_report(reports).splitlines()
    assert lines[0].split()[:4] == ["text", "tokenizer", "words", "tokens/word"]
    assert [line.split()[:2] for line in lines[1:3]] == [["source", "web"]] * 2
    assert "Devanagari characters that are no piece: none" in format_report(reports)
    data = json.loads(json.dumps(reports[0].to_json()))
    assert data["by_source"]["web"]["words"] == 2 and data["by_source"]["web"]["tokens_per_word"] > 0


def test_report_of_no_text_is_empty(encoder):
    (report,) = report_tokenizers([encoder], [])
    assert report.by_source == {} and report.by_script == {} and format_report([report])
