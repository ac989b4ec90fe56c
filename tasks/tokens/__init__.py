"""From rows to token ids, and from these to padded batches of one task."""
