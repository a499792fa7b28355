"""Arrow's parser and the line by line reading agree, and only bad records are lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokpipe.corpus import jsonl
from tokpipe.corpus.json_records import read_record
from tokpipe.errors import UnreadableFileError

GOOD = b'{"text": "good", "x": [1, {"y": null}]}'
BAD = {
    b'{"text": "broken': "bad_json",
    b'{"text": "a"}{"text": "b"}': "bad_json",
    b'{"text": "a"},': "bad_json",
    b'{"text": "a",}': "bad_json",
    b"{'text': 'a'}": "bad_json",
    b'{"text": "a"} \x00 ': "bad_json",
    b'\x00{"text": "a"}': "bad_json",
    b'{"text": "tab\there"}': "bad_json",
    b'{"text": "a"} // note': "bad_json",
    b'\xef\xbb\xbf{"text": "a"}': "bad_json",
    b"{": "bad_json",
    b'"text": "a"}': "bad_json",
    b"[" * 100_000: "bad_json",
    b'["text"]': "not_an_object",
    b'"text"': "not_an_object",
    b"null": "not_an_object",
    b"17": "not_an_object",
    b"{}": "missing_text",
    b'{"Text": "a"}': "missing_text",
    b'{"text": null}': "null_text",
    b'{"text": 42}': "not_a_string",
    b'{"text": 1.5}': "not_a_string",
    b'{"text": true}': "not_a_string",
    b'{"text": ["a"]}': "not_a_string",
    b'{"text": {"hi": "a"}}': "not_a_string",
    b'{"text": "\\ud83d x"}': "lone_surrogate",
    b'{"text": "x \\ude00"}': "lone_surrogate",
    b'{"text": "\\ude00\\ud83d"}': "lone_surrogate",
    b'{"text": "\xff"}': "invalid_utf8",
    b'{"text": "a", "other": "\xe0\xa4"}': "invalid_utf8",
    b'{"text": "\xed\xa0\x80"}': "invalid_utf8",
    b'{"text": ""}': "empty",
    b'{"text": " \\n\\t\\u00a0\\u3000"}': "empty",
}
ODD_BUT_GOOD = {
    b'{"text": "a", "text": "b"}': "b",
    b'{"text": "a", "n": NaN, "i": -Infinity}': "a",
    b'{"text": "a", "i": Inf}': "a",
    b'{"text": "a", "n": ' + b"9" * 5000 + b"}": "a",
    b'{"text": "a", "x": "\\ud800"}': "a",
    b'{"text": "2020-01-01"}': "2020-01-01",
    b'{"te\\u0078t": "a\\u0000b\\ud83d\\ude00"}': "a\0b😀",
    b'  {"text": "a"}\t': "a",
    b'{"text": "a"}\r': "a",
    b'{"text": "a", "deep": ' + b"[" * 50_000 + b"]" * 50_000 + b"}": "a",
}


@pytest.mark.parametrize(("line", "reason"), BAD.items(), ids=[f"{r}-{i}" for i, r in enumerate(BAD.values())])
def test_a_bad_record_is_lost_alone_and_located(corpus, line, reason):
    corpus.write("a.jsonl", b"\n".join([GOOD, line, GOOD, b"", line]))
    got, log = corpus.read()
    assert got == ["good", "good"]
    assert log.counts == {reason: 2} and log.blank == 1 and log.num_records == 4
    if reason != "empty":
        first = len(GOOD) + 1
        assert [reject.position for reject in log.first] == [first, first + len(line) + 1 + len(GOOD) + 2]


@pytest.mark.parametrize(("line", "text"), ODD_BUT_GOOD.items(), ids=range(len(ODD_BUT_GOOD)))
@pytest.mark.parametrize("neighbour", [GOOD, b"broken"])
def test_an_odd_record_reads_the_same_beside_good_and_bad_ones(corpus, line, text, neighbour):
    corpus.write("a.jsonl", b"\n".join([neighbour, line, neighbour, line, b""]))
    got, _ = corpus.read()
    assert got == [t for n in (0, 1) for t in (["good"] if neighbour == GOOD else []) + [text]]


def test_two_mistakes_that_would_cancel_out_are_both_seen(corpus):
    # Two objects on one line and one over two lines: as many records as lines.
    corpus.write("a.jsonl", b'{"text": "a"}{"text": "b"}\n{"text":\n"c"}\n' + GOOD)
    got, log = corpus.read()
    assert got == ["good"] and log.counts["bad_json"] + log.counts["not_an_object"] == 3


def test_blank_lines_are_counted_and_not_refused(corpus):
    corpus.write("a.jsonl", b"\n" + GOOD + b"\r\n \t \n\r\n" + GOOD)
    got, log = corpus.read()
    assert got == ["good", "good"] and not log.counts and log.blank == 3


@pytest.mark.parametrize("body", ['[{"text": "a"},\n{"text": "b"}]', '[{"text": "a"}]', '{\n  "text": "a"\n}\n', '"x"\n'])
def test_json_that_is_not_one_record_a_line_is_a_clear_error(corpus, body):
    corpus.write("a.json", "\n " + body)
    corpus.write("b.json", '{"text": "x"}\n')
    with pytest.raises(UnreadableFileError, match=r"a\.json: its first line is .*Expected one record a line"):
        corpus.read()


def test_json_with_a_record_a_line_is_read(corpus):
    corpus.write("a.json", b"\n" + GOOD + b"\n" + GOOD)
    assert corpus.read()[0] == ["good", "good"]


@pytest.mark.parametrize(
    ("block", "found"),
    [
        (b"", False),
        (b"\\", False),
        (b"\\u", False),
        (b"\\ud", True),
        (b"a\\uD83d", True),
        (b"\\u0041 ud \\d", False),
        (b"x\\\\ud", True),
    ],
)
def test_an_escaped_surrogate_is_seen(block, found):
    assert jsonl._has_escaped_surrogate(block) is found


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "a", "b"]), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    records=st.lists(values | st.fixed_dictionaries({"text": st.text(min_size=1)}), min_size=1, max_size=20), ascii_=st.booleans()
)
@pytest.mark.parametrize("column", [("text",), ("a", "text")])
def test_blocks_read_as_their_lines_read_alone(records, ascii_, column):
    lines = [json.dumps(record, ensure_ascii=ascii_).encode("utf-8", "surrogatepass") for record in records]
    expected = [read_record(line, column) for line in lines]
    block = jsonl._Block(b"\n".join(lines), 0, column)
    assert block.texts().to_pylist() == [text for text, _, _ in expected if text is not None]
    starts = [sum(len(line) + 1 for line in lines[:i]) for i in range(len(lines))]
    assert block.good_starts().tolist() == [s for s, (text, _, _) in zip(starts, expected, strict=True) if text is not None]
    assert sorted(block.refused) == [(s, r, d) for s, (t, r, d) in zip(starts, expected, strict=True) if t is None]
