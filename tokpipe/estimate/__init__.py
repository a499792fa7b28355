"""The arithmetic behind a run."""
