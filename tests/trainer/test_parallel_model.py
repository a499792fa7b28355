"""The object that the loop trains: accumulation, validation, and what it does with a step gone wrong."""

from __future__ import annotations

import jobs
import pytest
import torch

from tokpipe.trainer.mesh import ParallelConfig
from tokpipe.trainer.step import IGNORED, StepBatch


def test_accumulation_equals_one_large_batch():
    whole = jobs.run_steps(ParallelConfig())
    for (loss, norm), (wanted_loss, wanted_norm) in zip(jobs.run_steps(ParallelConfig(num_micro_batches=8)), whole, strict=True):
        assert loss == pytest.approx(wanted_loss, abs=2e-6)
        assert norm == pytest.approx(wanted_norm, abs=1e-6)


def test_samples_that_do_not_divide_into_micro_batches_are_an_error():
    with pytest.raises(ValueError, match="16 samples cannot be cut into num_micro_batches=3"):
        jobs.build(ParallelConfig(num_micro_batches=3)).train_step(jobs.global_batch(0))


def test_a_loss_that_is_not_finite_touches_no_weight():
    model = jobs.build(ParallelConfig())
    model.train_step(jobs.global_batch(0))
    state = {key: t.clone() for key, t in model.checkpoint_state().items()}
    with torch.no_grad():
        model.parts[0].head.weight[3, 5] = float("nan")
        state["weights.head.weight"][3, 5] = float("nan")
    result = model.train_step(jobs.global_batch(1))
    assert not result.applied
    assert result.loss != result.loss
    for key, tensor in model.checkpoint_state().items():
        assert torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(state[key])), key
    with torch.no_grad():
        model.parts[0].head.weight[3, 5] = 0.0
    assert model.train_step(jobs.global_batch(2)).applied  # and nothing of the bad gradient is left


def test_a_batch_without_any_label_has_no_loss_and_no_gradient():
    model = jobs.build(ParallelConfig())
    batch = jobs.global_batch(0)
    result = model.train_step(StepBatch(inputs=batch.inputs, labels=torch.full_like(batch.labels, IGNORED)))
    assert (result.loss, result.grad_norm, result.num_tokens) == (0.0, 0.0, 0)


def test_eval_loss_sums_and_leaves_no_trace():
    model, other = jobs.build(ParallelConfig()), jobs.build(ParallelConfig())
    model.eval_loss(jobs.global_batch(3))
    held_out = model.eval_loss(jobs.global_batch(0))
    step = model.train_step(jobs.global_batch(0))
    assert held_out.num_tokens == step.num_tokens
    assert held_out.loss_sum / held_out.num_tokens == pytest.approx(step.loss, abs=1e-6)
    assert step == other.train_step(jobs.global_batch(0))


def test_checkpoint_state_restores_a_run_in_another_model():
    model = jobs.build(ParallelConfig(dtype="bf16"))
    for step in range(2):
        model.train_step(jobs.global_batch(step))
    copy = jobs.build(ParallelConfig(dtype="bf16"))
    saved = {key: t.clone() for key, t in model.checkpoint_state().items()}
    for key, tensor in copy.checkpoint_state().items():
        tensor.copy_(saved[key])
    copy.after_load(int(saved["optimizer_step"]))
    assert copy.train_step(jobs.global_batch(2)) == model.train_step(jobs.global_batch(2))


def test_state_bytes_of_one_process():
    psi = jobs.MODEL.num_parameters
    for dtype, parameters, gradients, optimizer in (("fp32", 4, 4, 8), ("bf16", 2, 2, 12)):
        model = jobs.build(ParallelConfig(dtype=dtype))
        model.forward_backward(jobs.global_batch(0))
        held = model.state_bytes()
        assert (held.parameters, held.gradients, held.optimizer) == (parameters * psi, gradients * psi, optimizer * psi)
        assert held.total == 16 * psi


# Dynamo and Inductor warn of PyTorch's own doings: `.grad` of guarded activations, TorchScript.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_compiled_blocks_train_like_plain_ones(recompute):
    plain = jobs.run_steps(ParallelConfig(), num_steps=3)
    compiled = jobs.run_steps(ParallelConfig(compile=True, recompute=recompute), num_steps=3)
    for (loss, norm), (wanted_loss, wanted_norm) in zip(compiled, plain, strict=True):
        assert loss == pytest.approx(wanted_loss, abs=2e-6)
        assert norm == pytest.approx(wanted_norm, abs=1e-6)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    "config",
    [
        ParallelConfig(dp=8, zero=3, compile=True),
        ParallelConfig(dp=4, tp=2, zero=1, compile=True),
        ParallelConfig(pp=2, dp=2, tp=2, zero=3, num_micro_batches=4, recompute="full", compile=True),
    ],
)
def test_compiled_blocks_train_like_plain_ones_in_a_layout(gang, config):
    plain = jobs.run_steps(ParallelConfig(), num_steps=3)
    compiled = gang.run(jobs.run_steps, config, jobs.MODEL, jobs.ADAMW, 3, timeout=250)[0]
    for (loss, norm), (wanted_loss, wanted_norm) in zip(compiled, plain, strict=True):
        assert loss == pytest.approx(wanted_loss, abs=2e-6)
        assert norm == pytest.approx(wanted_norm, abs=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_bf16_compiled_run_falls_like_the_cpu_one():
    from tokpipe.trainer.parallelize import parallelize

    config = ParallelConfig(dtype="bf16", compile=True)
    model = parallelize(jobs.MODEL, config, jobs.ADAMW, mesh=None, device=torch.device("cuda"), seed=jobs.SEED)
    losses = [model.train_step(jobs.global_batch(step)).loss for step in range(5)]
    wanted = [loss for loss, _ in jobs.run_steps(ParallelConfig())]
    assert losses[4] < losses[0] - 0.1
    assert losses[0] == pytest.approx(wanted[0], abs=0.05)
