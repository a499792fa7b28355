"""The plain model: causal, blind across documents, and the same weights whoever draws them."""

from __future__ import annotations

import jobs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokpipe.errors import LayoutError
from tokpipe.trainer.initialize import materialize
from tokpipe.trainer.model import ModelConfig, Transformer, initial_weight
from tokpipe.trainer.step import IGNORED, mask_labels_across_documents, positions_in_documents

CPU = torch.device("cpu")


def small_model(**changes: object) -> Transformer:
    config = ModelConfig(
        **{"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 48, "vocab_size": 64, **changes}
    )
    with torch.device("meta"):
        model = Transformer(config)
    materialize(model, device=CPU, seed=1, rounded_to=torch.float32)
    return model


def random_tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 64, shape, generator=torch.Generator().manual_seed(seed))


def test_num_parameters_counts_every_weight():
    with torch.device("meta"):
        model = Transformer(jobs.MODEL)
    assert jobs.MODEL.num_parameters == sum(p.numel() for p in model.parameters()) == 262_720


def test_num_parameters_of_llama_7b():
    config = ModelConfig(num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=32, ffn_size=11008, vocab_size=32000)
    assert config.num_parameters == 6_738_415_616


@pytest.mark.parametrize("attention", ["sdpa", "unfused"])
def test_model_is_causal(attention):
    model = small_model(attention=attention)
    tokens = random_tokens(1, 12)
    changed = tokens.clone()
    changed[0, 7:] = (changed[0, 7:] + 1) % 64
    assert torch.equal(model(tokens)[0, :7], model(changed)[0, :7])
    assert not torch.equal(model(tokens)[0, 7], model(changed)[0, 7])


@pytest.mark.parametrize("documents", [False, True])
def test_unfused_attention_equals_fused(documents):
    ids = torch.tensor([[0] * 5 + [1] * 7]) if documents else None
    tokens = random_tokens(1, 12)
    fused, unfused = small_model(attention="sdpa"), small_model(attention="unfused")
    torch.testing.assert_close(fused(tokens, document_ids=ids), unfused(tokens, document_ids=ids))


@pytest.mark.parametrize("attention", ["sdpa", "unfused"])
def test_changing_one_document_changes_no_logits_of_the_next(attention):
    model = small_model(attention=attention)
    ids = torch.tensor([[0] * 5 + [1] * 7])
    positions = positions_in_documents(ids)
    tokens = random_tokens(1, 12)
    changed = tokens.clone()
    changed[0, :5] = (changed[0, :5] + 1) % 64
    before, after = (model(t, positions=positions, document_ids=ids) for t in (tokens, changed))
    assert torch.equal(before[0, 5:], after[0, 5:])
    assert not torch.equal(before[0, :5], after[0, :5])


def test_packed_documents_have_the_logits_they_have_alone():
    model = small_model()
    first, second = random_tokens(1, 5), random_tokens(1, 7, seed=1)
    ids = torch.tensor([[3] * 5 + [4] * 7])
    packed = model(torch.cat([first, second], dim=1), positions=positions_in_documents(ids), document_ids=ids)
    torch.testing.assert_close(packed[:, :5], model(first))
    torch.testing.assert_close(packed[:, 5:], model(second))


def test_only_distances_between_positions_matter():
    model = small_model()
    tokens = random_tokens(1, 9)
    places = torch.arange(9)[None]
    torch.testing.assert_close(model(tokens, positions=places), model(tokens, positions=places + 100), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(model(tokens, positions=places), model(tokens, positions=places * 2), atol=1e-5)


def test_loss_is_the_sum_over_counted_labels():
    model = small_model()
    tokens, labels = random_tokens(2, 6), random_tokens(2, 6, seed=1)
    labels[0, :4] = IGNORED
    by_hand = -model(tokens).log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    torch.testing.assert_close(model(tokens, labels=labels), by_hand[labels != IGNORED].sum()[None])


def test_initial_weights_follow_from_seed_and_name():
    config, shape = jobs.MODEL, torch.Size([64, 64])
    name = "layers.0.attention.query.weight"
    weight = initial_weight(config, name, shape, seed=1, device=CPU)
    assert torch.equal(weight, initial_weight(config, name, shape, seed=1, device=CPU))
    assert not torch.equal(weight, initial_weight(config, name, shape, seed=2, device=CPU))
    assert not torch.equal(weight, initial_weight(config, name.replace("0", "1"), shape, seed=1, device=CPU))
    assert weight.std() == pytest.approx(0.02, rel=0.05)
    residual = initial_weight(config, "layers.0.ffn.down.weight", shape, seed=1, device=CPU)
    assert residual.std() == pytest.approx(0.02 / 8**0.5, rel=0.05)
    assert initial_weight(config, "layers.0.ffn_norm.weight", torch.Size([64]), seed=1, device=CPU).eq(1).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "hidden_size=32 must be an even multiple of num_heads=5"),
        ({"num_heads": 32}, "even multiple"),  # heads of one element cannot be rotated
        ({"num_kv_heads": 3}, "num_kv_heads=3 must divide num_heads=4"),
        ({"num_layers": 0}, r"model\.num_layers must be at least 1"),
        ({"attention": "linear"}, "attention must be 'sdpa' or 'unfused'"),
    ],
)
def test_impossible_shapes_are_refused(changes, message):
    with pytest.raises(LayoutError, match=message):
        small_model(**changes)


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_positions_restart_and_labels_stop_at_every_boundary(lengths):
    ids = torch.tensor([[i for i, length in enumerate(lengths) for _ in range(length)]])
    positions = positions_in_documents(ids)
    assert positions[0].tolist() == [place for length in lengths for place in range(length)]
    labels = mask_labels_across_documents(torch.ones_like(ids), ids)
    expected = [place for length in lengths for place in [1] * (length - 1) + [IGNORED]]
    assert labels[0].tolist() == [*expected[:-1], 1]  # the last token's document may go on in the next sample
