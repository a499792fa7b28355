"""Ids to disk: the on-disk contract."""
