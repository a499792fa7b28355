"""Weights as arithmetic, and the most frequent words against sorting everything."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokpipe.errors import TrainingError
from tokpipe.tokenizer import WordCounter, merge_counts, read_counts_info
from tokpipe.tokenizer.counts_file import CountsInfo, SourceTotals
from tokpipe.tokenizer.word_selection import SelectedWords, select_words, weight_factors, whole_counts


def info(**sources: dict[str, int]) -> CountsInfo:
    scripts = {"other": 0, "latin": 0, "devanagari": 0}
    totals = {name: SourceTotals(text_bytes=sum(sizes.values()), script_bytes=scripts | sizes) for name, sizes in sources.items()}
    return CountsInfo(totals=totals, max_word_bytes=4096)


def counts_file(folder, **texts: str):
    paths = []
    for name, text in texts.items():
        with WordCounter(name, max_words=256) as counter:
            counter.add(pa.array([text], pa.large_string()))
            paths.append(folder / f"{name}.counts")
            counter.write(paths[-1])
    merge_counts(paths, folder / "all.counts")
    return folder / "all.counts"


def as_dict(words: SelectedWords) -> dict[str, int]:
    data, starts = words.keys.tobytes(), words.starts.tolist()
    return {data[a:b].decode(): int(n) for a, b, n in zip(starts[:-1], starts[1:], words.counts, strict=True)}


def test_scripts_are_balanced_in_bytes_by_default():
    text = info(all={"latin": 900, "devanagari": 100, "other": 50})
    # 500 bytes of each; what belongs to neither script stays as it is.
    assert weight_factors(text, (), 0.0).tolist() == [[1.0, 500 / 900, 5.0]]


@pytest.mark.parametrize("sizes", [{"latin": 10**6}, {"latin": 10**6, "devanagari": 999}, {"other": 5}])
def test_a_few_foreign_words_are_not_given_half_of_the_vocabulary(sizes):
    assert weight_factors(info(all=sizes), (), 0.0).tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("weights", "temperature", "shares"),
    [
        ((("en", 0.5), ("hi", 0.5)), 0.0, [0.5, 0.5]),
        ((("en", 3.0), ("hi", 1.0)), 0.0, [0.75, 0.25]),  # shares need not add up to 1
        ((("en", 0.0), ("hi", 1.0)), 0.0, [0.0, 1.0]),
        ((), 1.0, [0.9, 0.1]),  # the text as it is
        ((), 2.0, [0.75, 0.25]),  # sqrt(900) : sqrt(100)
    ],
)
def test_sources_get_their_share_of_the_bytes(weights, temperature, shares):
    text = info(en={"latin": 900}, hi={"devanagari": 100})
    factors = weight_factors(text, weights, temperature)
    assert (factors * np.array([[900], [100]]) / 1000)[:, 0] == pytest.approx(shares)
    assert (factors == factors[:, :1]).all()  # scripts play no part


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((("en", 1.0),), "without a weight: hi"),
        ((("en", 1.0), ("hi", 1.0), ("de", 1.0)), "unknown: de"),
        ((("en", 0.0), ("hi", 0.0)), "all language weights are 0"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights, message):
    with pytest.raises(TrainingError, match=message):
        weight_factors(info(en={"latin": 900}, hi={"devanagari": 100}), weights, 0.0)


def test_a_temperature_whose_shares_are_no_numbers_is_refused():
    with pytest.raises(TrainingError, match=r"temperature 0\.001 is too low: 900 bytes"):
        weight_factors(info(en={"latin": 900}, hi={"devanagari": 100}), (), 0.001)


def test_weight_of_a_source_without_text_is_refused():
    with pytest.raises(TrainingError, match="hi has a language weight but no text"):
        weight_factors(info(en={"latin": 900}, hi={}), (("en", 0.5), ("hi", 0.5)), 0.0)


@settings(deadline=None)
@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=20))
def test_whole_counts_keep_proportions(weighted):
    counts = whole_counts(np.array(weighted))
    assert counts.min() >= 1 and counts.sum() <= 1.01e16 + len(counts)
    if all(value.is_integer() for value in weighted):
        assert counts.tolist() == weighted
    else:
        scale = counts.sum() / sum(weighted)
        assert counts == pytest.approx(np.array(weighted) * scale, rel=0.07, abs=1)


word_lists = st.lists(st.sampled_from("a b c dd ee ff कख गघ १ , aa ab ac ad".split()), max_size=40)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(word_lists, word_lists, st.integers(1, 6), st.sampled_from([0.0, 1.0, 3.0]))
def test_select_words_equals_sorting_everything(tmp_path, monkeypatch_blocks, english, hindi, max_words, temperature):
    path = counts_file(tmp_path, en=" ".join(english), hi=" ".join(hindi))
    options = {"weights": (), "temperature": temperature}
    if not english or not hindi:
        return
    with_all = as_dict(select_words([path], max_words=1000, **options))
    few = select_words([path], max_words=max_words, **options)
    assert few.num_distinct == len(with_all)
    # Scaling depends on the smallest word kept, so the choice is compared, by the exact order of weights.
    expected = sorted(with_all, key=lambda word: (-with_all[word], word.encode()))[:max_words]
    kept = as_dict(few)
    assert len(kept) == min(max_words, len(with_all))
    assert sorted(with_all[word] for word in kept) == sorted(with_all[word] for word in expected)
    assert list(kept) == sorted(kept, key=str.encode)


@pytest.fixture
def monkeypatch_blocks(monkeypatch):
    """Blocks of three rows, so that a word's rows fall into two blocks and pruning happens often."""
    monkeypatch.setattr("tokpipe.tokenizer.counts_file.ROWS_PER_GROUP", 3)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(word_lists, word_lists)
def test_rows_of_a_word_add_up_across_sources_and_blocks(tmp_path, monkeypatch_blocks, english, hindi):
    texts = {"en": " ".join(["x", *english]), "hi": " ".join(["x", *hindi])}
    words = select_words([counts_file(tmp_path, **texts)], weights=(), temperature=1.0, max_words=1000)
    assert as_dict(words) == Counter(["x", "x", *(f" {word}" for word in [*english, *hindi])])


def test_covered_share_is_of_plain_bytes(tmp_path):
    path = counts_file(tmp_path, en="aa " + "bbb " * 9 + "c")
    assert read_counts_info(path).totals["en"].script_bytes["latin"] == 2 + 9 * 4 + 2
    words = select_words([path], weights=(), temperature=0.0, max_words=1)
    assert as_dict(words) == {" bbb": 9} and words.covered_share == 36 / 40 and words.num_distinct == 3


def test_nothing_to_train_on_is_refused(tmp_path):
    path = counts_file(tmp_path, en="", hi="क")
    with pytest.raises(TrainingError, match="no words"):
        select_words([counts_file(tmp_path, en="")], weights=(), temperature=0.0, max_words=5)
    with pytest.raises(TrainingError, match="not a word counts"):
        select_words([path.with_name("none")], weights=(), temperature=0.0, max_words=5)
