"""The arithmetic of pre-training, pure: model state, activations, bubble, tokens, communication. `tokpipe plan` prints it."""

from tokpipe.estimate.activations import (
    MicroBatch,
    layer_bytes,
    llama_layer_bytes,
    logits_bytes,
    standard_layer_bytes,
)
from tokpipe.estimate.bubble import bubble_over_ideal, bubble_share, in_flight
from tokpipe.estimate.compute import flops_per_token, mfu, peak_flops
from tokpipe.estimate.grid import layers_per_stage
from tokpipe.estimate.memory import ModelState, stage_params, zero_state
from tokpipe.estimate.plan import Plan, make_plan
from tokpipe.estimate.render import render_plan
from tokpipe.estimate.request import PlanRequest, complete_request
from tokpipe.estimate.shapes import SHAPES, ModelShape, llama_ffn_size, nearest_shape
from tokpipe.estimate.tokens import chinchilla_tokens, corpus_bytes, num_steps, token_bytes

__all__ = [
    "SHAPES",
    "MicroBatch",
    "ModelShape",
    "ModelState",
    "Plan",
    "PlanRequest",
    "bubble_over_ideal",
    "bubble_share",
    "chinchilla_tokens",
    "complete_request",
    "corpus_bytes",
    "flops_per_token",
    "in_flight",
    "layer_bytes",
    "layers_per_stage",
    "llama_ffn_size",
    "llama_layer_bytes",
    "logits_bytes",
    "make_plan",
    "mfu",
    "nearest_shape",
    "num_steps",
    "peak_flops",
    "render_plan",
    "stage_params",
    "standard_layer_bytes",
    "token_bytes",
    "zero_state",
]
