"""Scores and predictions of models, comparisons between them, baselines, and inference timings."""
