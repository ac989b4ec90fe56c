"""Tasks: what they are, where their rows come from, and how rows become batches."""
