"""Ranks to tensors."""
