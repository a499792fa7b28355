"""Exported ids against SentencePiece's, on made-up, adversarial and real text."""

from __future__ import annotations

import io
import json
import random

import pyarrow as pa
import pyarrow.json
import pytest
import sentencepiece as spm
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from tokpipe.errors import TokenizerError
from tokpipe.tokenizer import TrainConfig, WordCounter, train_tokenizer
from tokpipe.tokenizer.export import export_hugging_face
from tokpipe.tokenizer.normalization import NUKTA_LETTERS

AWKWARD = [
    "</s>",
    "<s>",
    "<unk>",
    "<pad>",
    "<0x0A>",
    "\u2581",
    " ",
    "  ",
    "\n",
    "\t",
    "\r\n",
    "\0",
    "😀",
    *NUKTA_LETTERS,
    "ka",
    "प्र",
]


class Pair:
    """A SentencePiece model and its export."""

    def __init__(self, model_folder, out):
        self.path, self.config_path = export_hugging_face(model_folder, out)
        self.exported = tokenizers.Tokenizer.from_file(str(self.path))
        self.exported.encode_special_tokens = True
        self.model = spm.SentencePieceProcessor(model_file=str(model_folder / "tokenizer.model"))

    def check(self, texts):
        encoded = self.exported.encode_batch(texts, add_special_tokens=False)
        for text, found, expected in zip(texts, encoded, self.model.encode(texts), strict=True):
            assert found.ids == expected, repr(text[:200])


@pytest.fixture(scope="module")
def pair(small_model, tmp_path_factory):
    return Pair(small_model, tmp_path_factory.mktemp("export"))


@settings(deadline=None, max_examples=300)
@given(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"])),
        st.lists(st.sampled_from(AWKWARD)).map("".join),
        st.text(st.sampled_from("akmon -=क़ि\u0943"), max_size=40),
    )
)
def test_ids_equal_on_any_string(pair, text):
    pair.check([text])
    assert pair.exported.decode(pair.model.encode(text), skip_special_tokens=False) == pair.model.decode(pair.model.encode(text))


def test_ids_equal_on_whole_documents(pair, text_maker_session):
    pair.check([*text_maker_session("hi", 50, seed=7), *text_maker_session("en", 50, seed=7), "-" * 1000, " " * 999, "=-" * 500])


def test_special_tokens_in_text_are_text_only_with_the_setting(pair):
    plain = tokenizers.Tokenizer.from_file(str(pair.path))
    assert plain.encode("a</s>").ids[-1] == 2  # what the JSON cannot prevent
    assert 2 not in pair.exported.encode("a</s>").ids


def corpus_documents(folder, *, every: int) -> list[str]:
    texts: list[str] = []
    for path in sorted(folder.glob("*.jsonl.zst")):
        with pa.CompressedInputStream(str(path), "zstd") as stream:
            table = pyarrow.json.read_json(stream, pyarrow.json.ReadOptions(block_size=1 << 26))
        texts += table["text"].to_pylist()[::every]
    return texts


def train_on(texts: list[str], folder, **settings):
    with WordCounter("all") as counter:
        counter.add(pa.array(texts, pa.large_string()))
        counter.write(folder / "all.counts")
    train_tokenizer(folder / "all.counts", TrainConfig(**settings), folder)


@pytest.mark.parametrize("merge_punctuation", [False, True])
def test_ids_equal_on_a_sample_of_real_text(tmp_path, shared_corpus, merge_punctuation):
    texts = corpus_documents(shared_corpus, every=100)
    train_on(texts, tmp_path, vocab_size=12_000, merge_punctuation=merge_punctuation)
    Pair(tmp_path, tmp_path / "out").check(texts)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ids_equal_on_all_real_text(tmp_path, shared_corpus):
    texts = corpus_documents(shared_corpus, every=1)
    assert any("</s>" in text for text in texts)
    train_on(texts, tmp_path)
    pair = Pair(tmp_path, tmp_path / "out")
    for start in range(0, len(texts), 500):
        pair.check(texts[start : start + 500])


def test_transformers_loads_it_and_keeps_ids(pair):
    transformers = pytest.importorskip("transformers")
    rng = random.Random(3)
    texts = ["".join(rng.choices(AWKWARD, k=12)) for _ in range(50)]
    loaded = transformers.AutoTokenizer.from_pretrained(pair.path.parent)
    assert (loaded.unk_token_id, loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (0, 1, 2, 3)
    assert [loaded(text)["input_ids"] for text in texts] == pair.model.encode(texts)
    # Asked for its special tokens, as a chat template would.
    assert loaded("a</s>", split_special_tokens=False)["input_ids"][-1] == 2


def test_transformers_loads_it_as_a_llama_tokenizer(pair):
    transformers = pytest.importorskip("transformers")
    llama = transformers.LlamaTokenizerFast.from_pretrained(pair.path.parent)
    texts = ["kamon प्रमाना </s> 2024\n  x", "", "  - 😀"]  # no precomposed nukta: transformers 5 leaves rules out here
    assert llama.is_fast and [llama(text)["input_ids"] for text in texts] == pair.model.encode(texts)
    assert [llama.decode(ids) for ids in pair.model.encode(texts)] == texts


def test_config_names_what_readers_ask_for(pair):
    config = json.loads(pair.config_path.read_text())
    assert config["eos_token"] == "</s>" and config["split_special_tokens"] is True and config["add_prefix_space"] is False


def other_model(folder, **options):
    buffer = io.BytesIO()
    settings = {"vocab_size": 330, "model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": False, "minloglevel": 2}
    settings |= {"remove_extra_whitespaces": False, "normalization_rule_name": "identity", "hard_vocab_limit": False}
    texts = iter(["some words to train on, some more words"] * 20)
    spm.SentencePieceTrainer.train(sentence_iterator=texts, model_writer=buffer, **settings | options)
    (folder / "tokenizer.model").write_bytes(buffer.getvalue())
    return folder


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model_type": "unigram"}, "unigram"),
        ({"normalization_rule_name": "nmt_nfkc"}, "rules for more than one character"),
        ({"byte_fallback": False, "vocab_size": 40}, "byte fallback"),
        ({"add_dummy_prefix": True}, "add_dummy_prefix"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces"),
        ({"user_defined_symbols": ["<tag>"]}, "user-defined"),
    ],
)
def test_model_that_cannot_be_expressed_is_refused_with_the_reason(tmp_path, options, reason):
    with pytest.raises(TokenizerError, match=reason):
        export_hugging_face(other_model(tmp_path, **options), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_equal_scores_are_refused(tmp_path):
    proto = sentencepiece_model_pb2.ModelProto.FromString((other_model(tmp_path) / "tokenizer.model").read_bytes())
    merged = [piece for piece in proto.pieces if piece.type == 1 and len(piece.piece) > 1]
    merged[5].score = merged[6].score
    (tmp_path / "tokenizer.model").write_bytes(proto.SerializeToString())
    with pytest.raises(TokenizerError, match="same score"):
        export_hugging_face(tmp_path, tmp_path / "out")


def test_pieces_that_only_sentencepiece_can_reach_are_refused(tmp_path):
    proto = sentencepiece_model_pb2.ModelProto.FromString((other_model(tmp_path) / "tokenizer.model").read_bytes())
    next(one for one in proto.pieces if one.piece == "m").piece = "M"
    (tmp_path / "tokenizer.model").write_bytes(proto.SerializeToString())
    with pytest.raises(TokenizerError, match="holds 'm', which is no piece itself"):
        export_hugging_face(tmp_path, tmp_path / "out")


def test_the_null_character_as_a_piece_is_refused(tmp_path):
    proto = sentencepiece_model_pb2.ModelProto.FromString((other_model(tmp_path) / "tokenizer.model").read_bytes())
    proto.pieces.add(piece="\0", score=-999.0)
    (tmp_path / "tokenizer.model").write_bytes(proto.SerializeToString())
    with pytest.raises(TokenizerError, match=r"exported exactly.*null character"):
        export_hugging_face(tmp_path, tmp_path / "out")
