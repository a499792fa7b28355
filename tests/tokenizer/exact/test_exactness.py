"""The promise of the tokenizer: for every kind of model and every text, the ids are SentencePiece's."""

from __future__ import annotations

import io
import json
import random
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import sentencepiece
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokpipe.tokenizer import Tokenizer

FAST = (
    "64k", "1k", "70k-int32", "joined-punctuation", "dummy-prefix-unused", "suffix-shuffled", "equal-scores-own-rules",
    "score-zero-joined", "user-symbols", "user-symbols-unused-prefix", "missing-characters",
    "across-spaces",
)  # fmt: skip
PLAIN = ("no-byte-fallback", "nfkc", "removed-spaces", "unigram")


def differing(tokenizer: Tokenizer, reference: sentencepiece.SentencePieceProcessor, texts: list[str]) -> list[str]:
    """The texts that the two encode differently."""
    ids, offsets = tokenizer.encode_batch(pa.array(texts, pa.large_string()))
    expected = reference.encode(texts)
    lengths = np.array([len(x) for x in expected])
    if np.array_equal(np.diff(offsets), lengths) and np.array_equal(ids, [i for x in expected for i in x]):
        return []
    return [t for d, t in enumerate(texts) if ids[offsets[d] : offsets[d + 1]].tolist() != expected[d]]


@pytest.fixture(scope="module")
def pair(zoo, request):
    """A tokenizer and plain SentencePiece over the same model."""
    return Tokenizer(zoo[request.param], request.param), sentencepiece.SentencePieceProcessor(model_proto=zoo[request.param])


@pytest.mark.parametrize("pair", FAST + PLAIN, indirect=True, scope="module")
class TestEveryModel:
    def test_path_is_the_one_that_the_design_says(self, pair):
        tokenizer, _ = pair
        assert tokenizer.path_note.startswith("fast" if tokenizer.name in FAST else "plain")

    def test_real_text_equals_sentencepiece(self, pair, real_texts):
        assert differing(*pair, real_texts) == []

    def test_random_strings_equal_sentencepiece(self, pair, hostile_texts):
        assert differing(*pair, hostile_texts) == []

    def test_special_strings_in_text_never_give_control_ids(self, pair):
        tokenizer, reference = pair
        texts = [
            f"{a}{mark}{b}"
            for mark in ("</s>", "<s>", "<unk>", "<pad>", "<0x0A>")
            for a in ("", "x", " ")
            for b in ("", "y", " ")
        ]
        ids, _ = tokenizer.encode_batch(pa.array(texts, pa.large_string()))
        control = {i for i in range(tokenizer.vocab_size) if reference.is_control(i)}
        assert control and not control & set(ids.tolist())
        assert differing(tokenizer, reference, texts) == []

    def test_batches_and_rows_and_end_marks_change_nothing(self, pair):
        tokenizer, reference = pair
        texts = ["", "a  b", "क़िताब", "", "x" * 3000 + " " + "क" * 3000, " ", "</s>", "\n\n", "the end"]
        column = pa.array(["not this", *texts, "nor this"], pa.large_string())
        ids, offsets = tokenizer.encode_batch(column.slice(1, len(texts)), bos_id=1, eos_id=2)
        assert ids.dtype == tokenizer.dtype and offsets.dtype == np.int64
        assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == [[1, *x, 2] for x in reference.encode(texts)]

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        texts=st.lists(
            st.text(st.sampled_from("ab the5कि।\u200dé▁<s>\n\t\u0958😀.,ß") | st.characters(codec="utf-8")), max_size=8
        )
    )
    def test_any_texts_equal_sentencepiece(self, pair, texts):
        assert differing(*pair, texts) == []


@pytest.mark.parametrize("pair", ["64k"], indirect=True)
def test_awkward_files_equal_sentencepiece(pair, shared_messy):
    raw = [path.read_bytes().decode("utf-8", "ignore") for path in sorted(shared_messy.glob("*.txt"))]
    raw += [
        line for path in sorted(shared_messy.glob("*.jsonl")) for line in path.read_bytes().decode("utf-8", "ignore").splitlines()
    ]
    with pa.input_stream(str(shared_messy / "60_single_line_5mb_hi.txt.zst"), compression="zstd") as stream:
        raw.append(stream.read().decode())
    assert differing(*pair, raw) == []


@pytest.mark.parametrize("pair", ["64k", "user-symbols"], indirect=True)
def test_text_without_a_cut_is_not_quadratic(pair):
    # A line of 2 MB without a cut goes to SentencePiece whole; many shorter ones stop and resume the kernel for holes.
    texts = ["a" * 2_000_000, "क" * 300_000, " ".join("<" * 300 for _ in range(20_000)), "x"]
    assert differing(*pair, texts) == []


@pytest.mark.slow
@pytest.mark.parametrize("pair", FAST, indirect=True)
def test_a_million_random_strings_equal_sentencepiece(pair, real_words, random_text_maker):
    for seed in range(10):
        assert differing(*pair, random_text_maker(random.Random(100 + seed), 100_000, real_words[:50_000])) == []


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["64k", "joined-punctuation"], indirect=True)
@pytest.mark.parametrize("name", ["en", "hi", "mix", "other_devanagari"])
def test_the_whole_corpus_equals_sentencepiece(pair, shared_corpus, name):
    with pa.input_stream(str(shared_corpus / f"{name}.jsonl.zst"), compression="zstd") as stream:
        texts = [json.loads(line)["text"] for line in io.TextIOWrapper(stream, encoding="utf-8")]
    for start in range(0, len(texts), 2000):
        assert differing(*pair, texts[start : start + 2000]) == []
