"""Shards to ranks."""
