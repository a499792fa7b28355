"""Tensors to a model."""
