"""Checks of data: invalid rows, suspicious splits, duplicates and overlaps."""
