"""Checks of whole splits: suspicious splits, duplicates, overlaps, truncation. They use `tasks.data`."""
