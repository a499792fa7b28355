"""The tokenizer commands from counting to export, on a corpus of two small files."""

from __future__ import annotations

import gzip
import json
import random

import pytest
from click.testing import CliRunner

from tokpipe.cli.main import cli, main
from tokpipe.cli.tokenizer import tokenizer
from tokpipe.errors import TokpipeError, TrainingError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def corpus(folder):
    """Sources `en` and `hi`, 150 documents each."""
    rng = random.Random(4)
    syllables = {"en": "ka to ri mon es ing the un".split(), "hi": "क ता रि मो न्य ङ ज़ स्त".split()}
    (folder / "raw").mkdir()
    for name, parts in syllables.items():
        words = ["".join(rng.choices(parts, k=rng.randint(1, 4))) for _ in range(400)]
        lines = [json.dumps({"text": " ".join(rng.choices(words, k=80))}, ensure_ascii=False) for _ in range(150)]
        (folder / "raw" / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "raw"


def run(*args, stdin: str | bytes | None = None):
    return CliRunner().invoke(cli, ["tokenizer", *map(str, args)], input=stdin, catch_exceptions=False)


def run_json(*args, stdin: str | bytes | None = None):
    result = run(*args, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def counts(folder, corpus):
    path = folder / "all.counts"
    result = run("count", "--corpus", corpus, "--held-out", 0.2, "--out", path)
    assert result.exit_code == 0 and "hi: " in result.stdout and "devanagari" in result.stdout
    return path


@pytest.fixture(scope="module")
def model(folder, counts):
    result = run("train", "--counts", counts, "--vocab-size", 600, "--out", folder / "model")
    assert result.exit_code == 0 and "600 pieces" in result.stdout and "100.000% of the text" in result.stdout
    return folder / "model"


def test_parts_merge_to_what_one_count_gives(folder, corpus, counts):
    for part in (0, 1):
        run_json("count", "--corpus", corpus, "--held-out", 0.2, "--part", f"{part}/2", "--out", folder / f"{part}.counts")
    summary = run_json("merge-counts", folder / "1.counts", folder / "0.counts", "--out", folder / "merged.counts")
    assert (folder / "merged.counts").read_bytes() == counts.read_bytes()
    assert set(summary["totals"]) == {"en", "hi"} and summary["rows"] > 500
    assert 90 < summary["totals"]["en"]["documents"] < 145  # about a fifth is held out
    assert "rows of word and source" in run("merge-counts", folder / "0.counts", "--out", folder / "same.counts").stdout


def test_part_without_a_split_fails(folder, corpus):
    result = run("count", "--corpus", corpus, "--part", "7/8", "--out", folder / "none.counts")
    assert result.exit_code == 1 and "no text to count in part 7/8" in result.stderr
    assert not (folder / "none.counts").exists()


def test_encode_and_decode_are_inverse(model):
    text = "kato </s> ज़रि\n"
    encoded = run_json("encode", model, text)
    assert run("encode", model, text).stdout.split() == list(map(str, encoded["ids"]))
    assert run("encode", model, text, "--pieces").stdout.split() == encoded["pieces"]
    assert run_json("encode", model, stdin=text) == encoded
    ids = list(map(str, encoded["ids"]))
    decoded = run_json("decode", model, *ids)["text"]
    assert decoded == text.replace("\u095b", "\u091c\u093c")
    assert run("decode", model, stdin=" ".join(ids)).stdout == decoded + "\n"


def test_encode_refuses_what_is_not_utf8(model):
    for result in (run("encode", model, stdin=b"kato \xff"), run("encode", model, "kato \udcff")):
        assert result.exit_code in (1, 2) and "not UTF-8" in result.stderr


def test_encode_reads_line_ends_as_a_corpus_does(model):
    assert run_json("encode", model, stdin=b"kato\r\nri\r") == run_json("encode", model, "kato\nri\n")


def test_out_of_the_wrong_kind_is_wrong_usage(folder, corpus, counts, model):
    for command in (["count", "--corpus", corpus], ["merge-counts", counts]):
        assert run(*command, "--out", folder).exit_code == 2
    for command in (["train", "--counts", counts], ["export", model]):
        assert run(*command, "--out", counts).exit_code == 2


def test_decode_refuses_what_is_no_id(model):
    for result in (run("decode", model, 600), run("decode", model, stdin="5 x")):
        assert result.exit_code == 2 and "IDS" in result.stderr


def test_report_compares_tokenizers_on_what_was_held_out(folder, corpus, model):
    exported = run("export", model, "--out", folder / "hf")
    assert exported.exit_code == 0 and exported.stdout.split() == [
        str(folder / "hf" / name) for name in ("tokenizer.json", "tokenizer_config.json")
    ]
    data = run_json("report", model, "--corpus", corpus, "--held-out", 0.2, "--compare", folder / "hf" / "tokenizer.json")
    ours, theirs = data["tokenizers"]
    assert ours["by_source"] == theirs["by_source"] and set(ours["by_source"]) == {"en", "hi"}
    assert ours["by_source"]["hi"]["unknown_rate"] == 0.0 and ours["by_source"]["en"]["documents"] < 60
    text = run("report", model, "--corpus", corpus)
    assert text.exit_code == 0 and "source hi" in text.stdout and "script devanagari" in text.stdout


@pytest.mark.parametrize(
    "options",
    [
        ["--language-weights", "hi"],
        ["--language-weights", "hi=x"],
        ["--language-weights", "hi=-1,en=1"],
        ["--language-weights", "hi=inf,en=1"],
        ["--language-temperature", "inf"],
        ["--language-weights", "hi=1,en=1", "--language-temperature", "2"],
        ["--vocab-size", "0"],
        ["--normalization", "nfkc"],
    ],
)
def test_wrong_settings_are_wrong_usage(folder, counts, options):
    result = run("train", "--counts", counts, "--out", folder / "wrong", *options)
    assert result.exit_code == 2 and "Error" in result.stderr and not (folder / "wrong").exists()


def test_weights_reach_the_training(folder, counts):
    for share in (0.1, 0.9):
        weights = f"hi={share},en={1 - share}"
        card = run_json(
            "train", "--counts", counts, "--vocab-size", 600, "--language-weights", weights, "--out", folder / weights
        )
        assert dict(card["settings"]["language_weights"])["hi"] == share
    models = [(folder / f"hi={share},en={1 - share}" / "tokenizer.model").read_bytes() for share in (0.1, 0.9)]
    assert models[0] != models[1]


def test_training_from_the_corpus_is_counting_and_training(folder, corpus, model):
    options = ["--held-out", 0.2, "--vocab-size", 600]
    card = run_json("train", "--corpus", corpus, *options, "--out", folder / "straight")
    assert (folder / "straight" / "tokenizer.model").read_bytes() == (model / "tokenizer.model").read_bytes()
    assert card == json.loads((model / "card.json").read_text())
    assert not list(folder.glob(".counts-*"))


def test_training_from_several_counts_is_training_from_their_merger(folder, corpus, model):
    files = []
    for part in ("0/2", "1/2"):
        files += ["--counts", folder / f"{part[0]}.part"]
        run("count", "--corpus", corpus, "--held-out", 0.2, "--part", part, "--out", files[-1])
    assert run("train", *files, "--vocab-size", 600, "--out", folder / "several").exit_code == 0
    assert (folder / "several" / "tokenizer.model").read_bytes() == (model / "tokenizer.model").read_bytes()


@pytest.mark.parametrize(
    "source", [["--counts", "COUNTS", "--corpus", "CORPUS"], [], ["--counts", "COUNTS", "--held-out", "0.1"]]
)
def test_training_needs_counts_or_a_corpus(folder, corpus, counts, source):
    paths = {"COUNTS": counts, "CORPUS": corpus}
    result = run("train", *(paths.get(word, word) for word in source), "--out", folder / "wrong")
    assert result.exit_code == 2 and "--counts" in result.stderr and "--corpus" in result.stderr


def test_more_sources_than_are_read_at_once(tmp_path):
    for number in range(70):
        (tmp_path / "raw" / f"s{number:02d}").mkdir(parents=True)
        (tmp_path / "raw" / f"s{number:02d}" / "a.txt").write_text(f"some words of source {number}\n" * 9)
    card = run_json("train", "--corpus", tmp_path / "raw", "--vocab-size", 430, "--out", tmp_path / "out")
    assert len(card["counts"]["totals"]) == 70


def test_a_file_that_cannot_be_read_is_named_though_it_is_read_ahead(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.jsonl").write_text('{"text": "fine"}\n')
    (tmp_path / "raw" / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "cut off"}\n' * 999)[:-40])
    with pytest.raises(TokpipeError, match=r"b\.jsonl\.gz"):
        run("train", "--corpus", tmp_path / "raw", "--out", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_an_error_of_the_library_is_an_error_of_the_command(folder, counts):
    with pytest.raises(TrainingError, match="largest possible"):
        run("train", "--counts", counts, "--vocab-size", 10**6, "--out", folder / "wrong")


def test_an_error_of_the_system_is_told_without_a_traceback(corpus, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tokpipe", "tokenizer", "count", "--corpus", str(corpus), "--out", "/proc/x.counts"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "Error: [Errno" in (told := capsys.readouterr().err) and "/proc/" in told and "Traceback" not in told


@pytest.mark.parametrize("value", ["2/2", "x/2", "1", "-1/2"])
def test_part_checks_itself(corpus, folder, value):
    result = run("count", "--corpus", corpus, "--out", folder / "x", "--part", value)
    assert result.exit_code == 2 and "I/N" in result.stderr


@pytest.mark.parametrize("name", sorted(tokenizer.commands))
def test_every_command_has_help_and_json(name):
    result = run(name, "--help")
    assert result.exit_code == 0 and "--json" in result.stdout and tokenizer.commands[name].help
