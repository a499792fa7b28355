"""The real thing: megatron-core opens our shards, and its own builder writes the same bytes."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from tokpipe.shards import Shard, ShardWriter

pytestmark = [
    pytest.mark.interop,
    # Megatron warns at import that Apex and Transformer Engine are absent, and its code uses deprecated parts of torch.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def megatron():
    """megatron.core.datasets, or a skip that says what to install."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("megatron.core", reason="needs megatron-core: `make test-interop` installs it")
        from megatron.core.datasets import indexed_dataset
    return indexed_dataset


@pytest.fixture
def corpus():
    """Documents with the awkward sizes: of one token, and longer than a sample."""
    rng = np.random.default_rng(5)
    lengths = [1, 2, 3000, *rng.integers(1, 400, 300).tolist()]
    return [np.append(rng.integers(4, 32_000, length - 1), 2) for length in lengths]


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
@pytest.mark.parametrize("mmap", [True, False])
def test_indexed_dataset_returns_the_same_tokens(megatron, write_shard, corpus, dtype, mmap):
    prefix = write_shard(corpus, dtype=dtype)
    assert megatron.IndexedDataset.exists(str(prefix))
    dataset = megatron.IndexedDataset(str(prefix), mmap=mmap)
    assert len(dataset) == len(corpus)
    assert dataset.index.dtype == np.dtype(dtype)
    assert dataset.document_indices.tolist() == list(range(len(corpus) + 1))
    assert all(np.array_equal(dataset[i], document) for i, document in enumerate(corpus))
    assert dataset.get(2, offset=2990).tolist() == corpus[2][2990:].tolist()


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_its_builder_writes_identical_files(megatron, tmp_path, write_shard, corpus, dtype):
    import torch

    ours = write_shard(corpus, dtype=dtype)
    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.dtype(dtype).type)
    for document in corpus:
        builder.add_document(torch.from_numpy(document), [len(document)])
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        assert Path(f"{ours}{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()


def test_we_open_what_its_builder_wrote(megatron, tmp_path, corpus):
    import torch

    builder = megatron.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    for document in corpus:
        builder.add_document(torch.from_numpy(document), [len(document)])
    builder.finalize(str(tmp_path / "theirs.idx"))
    shard = Shard.open(tmp_path / "theirs")
    assert all(np.array_equal(shard.document(i), document) for i, document in enumerate(corpus))


def test_gpt_dataset_returns_the_same_tokens(megatron, tmp_path, corpus):
    """Every sample of one epoch is a window over our documents in the order that GPTDataset shuffled them into."""
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import Split

    with ShardWriter(tmp_path / "s", dtype="uint16") as writer:
        writer.append(np.concatenate(corpus), np.concatenate([[0], np.cumsum([len(d) for d in corpus])]))
        writer.commit()
    seq_len = 128
    indexed = megatron.IndexedDataset(str(tmp_path / "s"), mmap=True)
    dataset = GPTDataset(
        indexed,
        str(tmp_path / "s"),
        np.arange(len(corpus), dtype=np.int32),
        None,
        Split.train,
        gpt_config(GPTDatasetConfig, tmp_path, seq_len),
    )
    stream = np.concatenate([corpus[document] for document in dataset.document_index])
    windows = {int(i): stream[i * seq_len : (i + 1) * seq_len + 1] for i in range((len(stream) - 1) // seq_len)}
    assert len(dataset) == len(windows)
    seen = set()
    for number in range(len(dataset)):
        sample = dataset[number]
        window = windows[int(dataset.shuffle_index[number])]
        seen.add(int(dataset.shuffle_index[number]))
        assert np.array_equal(sample["tokens"].numpy(), window[:-1])
        assert np.array_equal(sample["labels"].numpy(), window[1:])
    assert seen == set(windows)


class FakeTokenizer:
    """What GPTDataset asks of a tokenizer."""

    eod = 2
    eos = 2
    pad = 3
    vocab_size = 32_000
    unique_identifiers = {"class": "FakeTokenizer"}  # noqa: RUF012 - Megatron reads it from the class


def gpt_config(config_class, folder: Path, seq_len: int):
    """One split, one epoch, everything in one process."""
    return config_class(
        random_seed=1,
        sequence_length=seq_len,
        split="1,0,0",
        path_to_cache=str(folder / "cache"),
        tokenizer=FakeTokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        mid_level_dataset_surplus=0.005,
    )
