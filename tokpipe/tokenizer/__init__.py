"""Text to ids: units, model, counts, training, report, export."""
