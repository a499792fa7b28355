from __future__ import annotations

import json
import random

import pytest
import torch
from safetensors.torch import load_file
from trainings import config_for, write_dataset

from tokpipe.errors import TrainerError
from tokpipe.shards import TokenizerEntry
from tokpipe.tokenizer import Tokenizer, TrainConfig, WordCounter, merge_counts, train_tokenizer
from tokpipe.trainer import ModelConfig, OptimizerConfig, ParallelConfig, export_checkpoint, parallelize, run_training
from tokpipe.trainer.checkpoint import Checkpoints
from tokpipe.trainer.export import llama_name
from tokpipe.trainer.world import World

TEXTS = [
    "नमस्ते दुनिया, ज़रा ठहरो।",
    "Prices rose by ₹500 in 2024 (see note).",
    "हिन्दी and English एक साथ</s>",
    "  two  spaces\nline 2\ttab 😀",
]


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    """A tokenizer of 600 pieces trained on made-up Hindi and English."""
    import pyarrow as pa

    folder = tmp_path_factory.mktemp("tokenizer")
    rng = random.Random(0)
    parts = ["ba", "con", "de", "re", "st", "ing", "का", "प्र", "मा", "नी", "ज़", "है"]
    words = ["".join(rng.choices(parts, k=rng.randint(1, 4))) for _ in range(500)]
    texts = [" ".join(rng.choices(words, k=80)) for _ in range(300)] + TEXTS
    with WordCounter("mix") as counter:
        counter.add(pa.array(texts, pa.large_string()))
        counter.write(folder / "mix.counts")
    merge_counts([folder / "mix.counts"], folder / "all.counts")
    train_tokenizer(folder / "all.counts", TrainConfig(vocab_size=600), folder)
    return folder


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "with <s>"])
def exported(request, tokenizer_folder, tmp_path_factory):
    """(run's folder, exported folder, tokenizer, whether the documents begin with <s>) of a model trained for 2 steps."""
    tokenizer = Tokenizer.load(tokenizer_folder)
    folder = tmp_path_factory.mktemp("exported")
    entry = TokenizerEntry(
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        eos_id=tokenizer.eos_id,
        bos_id=tokenizer.bos_id,
        prepend_bos=request.param,
    )
    data = write_dataset(folder / "data", tokenizer=entry)
    (data / "tokenizer").mkdir()
    (data / "tokenizer" / "tokenizer.model").write_bytes((tokenizer_folder / "tokenizer.model").read_bytes())
    config = config_for(folder / "run", data, run={"max_steps": 2}, model={"vocab_size": 600, "rope_theta": 5000.0})
    run_training(config)
    summary = export_checkpoint(folder / "run", folder / "hf", dtype="fp32")
    assert (summary.step, summary.num_files, summary.num_params) == (2, 1, config.model.num_parameters)
    return config, folder / "hf", tokenizer, request.param


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_transformers_loads_it_as_llama_with_the_same_logits(exported):
    from transformers import AutoModelForCausalLM, LlamaForCausalLM

    config, folder, _, _ = exported
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert isinstance(theirs, LlamaForCausalLM)
    ours = parallelize(config.model, ParallelConfig(), OptimizerConfig(), mesh=None, device=torch.device("cpu"), seed=0)
    alone = World(rank=0, world_size=1, device=torch.device("cpu"), store=None, control_group=None, checkpoint_group=None)
    checkpoints = Checkpoints(folder.parent / "run" / "checkpoints", config.checkpoint, alone)
    tensors = ours.checkpoint_state()
    checkpoints.load(checkpoints.latest(), tensors)
    ours.after_load(2)
    ids = torch.randint(0, 600, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours.parts[0](ids), theirs(ids).logits, rtol=0, atol=2e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_transformers_tokenizes_it_into_the_same_ids(exported):
    from transformers import AutoTokenizer

    _, folder, ours, prepend_bos = exported
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        expected = [ours.bos_id, *ours.encode(text)] if prepend_bos else ours.encode(text)
        assert theirs(text)["input_ids"] == expected, text
    assert theirs.eos_token_id == ours.eos_id
    assert json.loads((folder / "tokenizer_config.json").read_text())["add_bos_token"] is prepend_bos


def test_bf16_is_the_rounded_master(exported, tmp_path):
    config, folder, _, _ = exported
    export_checkpoint(folder.parent / "run" / "checkpoints" / "step-00000002", tmp_path, data=config.data.path)
    full, rounded = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert full.keys() == rounded.keys()
    assert all(torch.equal(full[name].bfloat16(), rounded[name]) for name in full)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_large_model_is_cut_into_files_with_an_index(exported, tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM

    _, folder, _, _ = exported
    monkeypatch.setattr("tokpipe.trainer.export.MAX_FILE_BYTES", 60_000)
    summary = export_checkpoint(folder.parent / "run", tmp_path, dtype="fp32")
    assert summary.num_files > 2
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {path.name for path in tmp_path.glob("model-*.safetensors")}
    whole, cut = (dict(AutoModelForCausalLM.from_pretrained(f).named_parameters()) for f in (folder, tmp_path))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_an_export_replaces_an_earlier_one_of_another_number_of_files(exported, tmp_path, monkeypatch):
    _, folder, _, _ = exported
    run = folder.parent / "run"
    export_checkpoint(run, tmp_path)
    monkeypatch.setattr("tokpipe.trainer.export.MAX_FILE_BYTES", 60_000)
    export_checkpoint(run, tmp_path)
    assert not (tmp_path / "model.safetensors").exists() and (tmp_path / "model.safetensors.index.json").exists()
    monkeypatch.undo()
    export_checkpoint(run, tmp_path)
    assert [path.name for path in tmp_path.glob("model*")] == ["model.safetensors"]


@pytest.mark.distributed
def test_a_checkpoint_of_many_ranks_exports_the_same_names(gang, exported, tmp_path):
    from trainings import recorded_run

    config, _, _, _ = exported
    parallel = {"pp": 2, "tp": 2, "dp": 2, "zero": 1, "num_micro_batches": 2}
    model = {"vocab_size": 600, "rope_theta": 5000.0}
    gang.run(recorded_run, config_for(tmp_path / "run", config.data.path, run={"max_steps": 2}, model=model, parallel=parallel))
    export_checkpoint(tmp_path / "run", tmp_path / "hf", dtype="fp32")
    one, many = (load_file(f / "model.safetensors") for f in (exported[1], tmp_path / "hf"))
    assert one.keys() == many.keys()
    for name in one:
        torch.testing.assert_close(one[name], many[name], rtol=0, atol=1e-4, msg=name)


@pytest.mark.parametrize("name", ["layers.1.attention.bias", "layers.1.other.weight", "something"])
def test_an_unknown_parameter_is_refused(name):
    with pytest.raises(TrainerError, match="no parameter of Llama"):
        llama_name(name)


def test_llama_name_covers_every_parameter_once():
    model = parallelize(
        ModelConfig(num_layers=2, hidden_size=8, num_heads=2, num_kv_heads=1, ffn_size=8, vocab_size=8),
        ParallelConfig(),
        OptimizerConfig(),
        mesh=None,
        device=torch.device("cpu"),
        seed=0,
    )
    names = [llama_name(name) for name, _ in model.parts[0].named_parameters()]
    assert len(names) == len(set(names)) == 2 * 9 + 3


def test_a_folder_without_checkpoint_is_refused(tmp_path):
    with pytest.raises(TrainerError, match="holds no complete checkpoint"):
        export_checkpoint(tmp_path, tmp_path / "hf")
