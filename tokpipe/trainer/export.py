"""A checkpoint as a folder that Hugging Face `transformers` loads as Llama: safetensors, config and tokenizer.

No model is built and no process group is needed: the checkpoint's own index says what it holds, and each output file's tensors
are read, renamed and written before the next one's. A 7B model therefore exports in the memory of one file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from tokpipe.errors import TrainerError
from tokpipe.shards import TokenizerEntry, read_manifest
from tokpipe.tokenizer.export import export_hugging_face
from tokpipe.trainer.checkpoint import latest_checkpoint, load_alone, read_state

PREFIX = "weights."
MAX_FILE_BYTES = 4 << 30
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
TOP = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight", "head.weight": "lm_head.weight"}
INSIDE = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    """What was written."""

    out: str
    step: int
    """Steps the model was trained for."""
    num_params: int
    num_files: int
    """Of safetensors."""


def llama_name(name: str) -> str:
    """Hugging Face's name of one of our parameters.

    Rotary halves are paired as there, so names are all that differs.

    Example:
        `llama_name("layers.3.ffn.gate.weight") == "model.layers.3.mlp.gate_proj.weight"`

    Raises:
        TrainerError: for a parameter that Llama does not have.
    """
    if name in TOP:
        return TOP[name]
    parts = name.split(".")
    inner = ".".join(parts[2:-1])
    if len(parts) < 4 or parts[0] != "layers" or inner not in INSIDE:
        raise TrainerError(f"the checkpoint holds {name!r}, which is no parameter of Llama; was it saved by `tokpipe train`?")
    return f"model.layers.{parts[1]}.{INSIDE[inner]}.{parts[-1]}"


def llama_config(model: Mapping[str, Any], *, dtype: Literal["bf16", "fp32"], tokenizer: TokenizerEntry) -> dict[str, Any]:
    """`config.json` for a saved `ModelConfig`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model["hidden_size"],
        "intermediate_size": model["ffn_size"],
        "num_hidden_layers": model["num_layers"],
        "num_attention_heads": model["num_heads"],
        "num_key_value_heads": model["num_kv_heads"],
        "head_dim": model["hidden_size"] // model["num_heads"],
        "vocab_size": model["vocab_size"],
        "max_position_embeddings": model["max_seq_len"],
        "rope_theta": model["rope_theta"],
        "rms_norm_eps": model["norm_eps"],
        "initializer_range": model["init_std"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "torch_dtype": str(DTYPES[dtype]).removeprefix("torch."),
    }


def export_checkpoint(
    run: str | Path, out: str | Path, *, data: str | Path | None = None, dtype: Literal["bf16", "fp32"] = "bf16"
) -> ExportSummary:
    """Write a checkpoint as a Hugging Face model folder.

    Args:
        run: a run's folder (its latest checkpoint is taken), or one checkpoint's.
        out: folder to write; made if it is not there.
        data: the dataset whose tokenizer goes with it; the one it was trained on unless given.
        dtype: of the weights; training kept them in fp32.

    Raises:
        TrainerError: if there is no complete checkpoint.
        ManifestError: if the dataset is not there; give `data`.
    """
    folder = _checkpoint_of(Path(run))
    state = read_state(folder)
    dataset = Path(data if data is not None else state["data_path"])
    tokenizer = read_manifest(dataset).tokenizer
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    shapes = _shapes(folder)
    files = _plan_files(shapes, DTYPES[dtype].itemsize)
    _write_weights(folder, target, shapes, files, DTYPES[dtype])
    _write_json(target / "config.json", llama_config(state["model"], dtype=dtype, tokenizer=tokenizer))
    _write_json(target / "generation_config.json", {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id})
    export_hugging_face(dataset / tokenizer.path, target)
    if tokenizer.prepend_bos:
        _begin_with_bos(target)
    return ExportSummary(
        out=str(target),
        step=int(state["step"]),
        num_params=sum(torch.Size(shape).numel() for shape in shapes.values()),
        num_files=len(files),
    )


def _checkpoint_of(run: Path) -> Path:
    if (run / ".metadata").exists():
        return run
    found = latest_checkpoint(run / "checkpoints")
    if found is None:
        raise TrainerError(f"{run}: holds no complete checkpoint; give a run's folder (run.out) or one checkpoint's (step-…)")
    return found


def _shapes(folder: Path) -> dict[str, torch.Size]:
    """Every parameter of a checkpoint with its whole shape, in model order."""
    entries = FileSystemReader(folder).read_metadata().state_dict_metadata
    shapes = {
        name.removeprefix(PREFIX): entry.size
        for name, entry in entries.items()
        if name.startswith(PREFIX) and isinstance(entry, TensorStorageMetadata)
    }
    return dict(sorted(shapes.items(), key=lambda item: _order(item[0])))


def _order(name: str) -> tuple[int, int, str]:
    parts = name.split(".")
    return (1, int(parts[1]), name) if parts[0] == "layers" else (0 if name == "embedding.weight" else 2, 0, name)


def _plan_files(shapes: Mapping[str, torch.Size], itemsize: int) -> list[list[str]]:
    """Cut the parameters into runs that fit a file each."""
    files: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        num_bytes = shape.numel() * itemsize
        if files[-1] and size + num_bytes > MAX_FILE_BYTES:
            files.append([])
            size = 0
        files[-1].append(name)
        size += num_bytes
    return files


def _write_weights(
    folder: Path, target: Path, shapes: Mapping[str, torch.Size], files: list[list[str]], dtype: torch.dtype
) -> None:
    weight_map: dict[str, str] = {}
    for pattern in ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json"):
        for old in target.glob(pattern):
            old.unlink()  # Of an earlier export: transformers would load its one whole file, not this one's many.
    for number, names in enumerate(files, start=1):
        file_name = "model.safetensors" if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        tensors: dict[str, Any] = {PREFIX + name: torch.empty(shapes[name], dtype=torch.float32) for name in names}
        load_alone(folder, tensors)
        renamed: dict[str, Tensor] = {llama_name(name): tensors[PREFIX + name].to(dtype) for name in names}
        save_file(renamed, target / file_name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(renamed, file_name)
    if len(files) > 1:
        total = sum(shape.numel() * dtype.itemsize for shape in shapes.values())
        _write_json(target / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _begin_with_bos(target: Path) -> None:
    """Make the exported tokenizer begin every text with the beginning-of-sequence token, as the training documents did."""
    path = target / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    bos = config["bos_token"]
    _write_json(path, config | {"add_bos_token": True})
    path = target / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    number = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == bos)
    first, second = {"SpecialToken": {"id": bos, "type_id": 0}}, {"SpecialToken": {"id": bos, "type_id": 1}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [first, {"Sequence": {"id": "A", "type_id": 0}}, second, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [number], "tokens": [bos]}},
    }
    path.write_text(json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
