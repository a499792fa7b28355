"""Raw text: inventory, splits, readers, rejects."""
