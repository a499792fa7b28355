from __future__ import annotations

import pytest

from tokpipe.estimate import SHAPES, MicroBatch, ModelShape, layer_bytes, llama_layer_bytes, standard_layer_bytes

LLAMA = SHAPES["llama-7b"]


@pytest.mark.parametrize(
    ("seq_len", "recompute", "layer_mb", "total_gb"),
    [
        (512, "none", 113.2, 3.62),
        (1024, "none", 310.4, 9.93),
        (2048, "none", 956.3, 30.60),
        (4096, "none", 3254.8, 104.15),
        (2048, "full", 16.8, 0.54),
        (4096, "full", 33.6, 1.07),
    ],
)
def test_standard_layer_bytes_of_llama_7b(seq_len, recompute, layer_mb, total_gb):
    layer = standard_layer_bytes(LLAMA, MicroBatch(seq_len=seq_len), recompute)
    assert round(layer / 1e6, 1) == layer_mb
    assert round(32 * layer / 1e9, 2) == total_gb


@pytest.mark.parametrize(
    ("tp", "sequence_parallel", "per_sbh", "remark"),
    [
        (1, True, 34 + 80, "5 a s / h = 80 for llama-7b at 2,048"),
        (8, True, (34 + 80) / 8, "with sequence parallelism all is divided"),
        (8, False, 10 + (24 + 80) / 8, "without it norms, dropouts and block inputs are not"),
    ],
)
def test_standard_layer_bytes_under_tensor_parallelism(tp, sequence_parallel, per_sbh, remark):
    batch = MicroBatch(seq_len=2048, tp=tp, sequence_parallel=sequence_parallel)
    assert standard_layer_bytes(LLAMA, batch) == 2048 * 4096 * per_sbh, remark


@pytest.mark.parametrize("block", ["llama-7b", "gpt3-175b"])
def test_recomputation_keeps_less_and_full_keeps_the_input_alone(block):
    shape, batch = SHAPES[block], MicroBatch(seq_len=2048, tp=4)
    kept = [layer_bytes(shape, batch, recompute) for recompute in ("none", "selective", "full")]
    assert kept[0] > kept[1] > kept[2] == 2 * 2048 * shape.hidden_size / 4


@pytest.mark.parametrize("attention", ["flash", "unfused"])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_llama_layer_bytes_is_what_autograd_saves(attention, kv_heads):
    """Exactly: every distinct storage that the trainer's block saves on CPU, weights and rotary tables apart."""
    torch = pytest.importorskip("torch")
    model = pytest.importorskip("tokpipe.trainer.model")
    sizes = {"num_layers": 1, "hidden_size": 64, "num_heads": 4, "num_kv_heads": kv_heads, "ffn_size": 96, "vocab_size": 64}
    kind = "sdpa" if attention == "flash" else "unfused"
    block = model.Block(model.ModelConfig(**sizes, attention=kind)).bfloat16()
    batch, seq_len = 2, 32
    x = torch.randn(batch, seq_len, 64, dtype=torch.bfloat16, requires_grad=True)
    cos, sin = model.rotary_angles(torch.arange(seq_len).expand(batch, -1), head_size=16, theta=1e4)
    apart = {t.untyped_storage().data_ptr() for t in (*block.parameters(), cos, sin)}
    saved, alive = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in apart:
            saved[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        block(x, cos, sin, None)
    shape = ModelShape(name="test", **sizes)
    expected = llama_layer_bytes(shape, MicroBatch(seq_len=seq_len, size=batch), "none", attention, fused_norm=False)
    assert sum(saved.values()) == expected
