"""Augmentation: corpora of new text, written to disk in resumable shards."""
