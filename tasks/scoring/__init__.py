"""Metrics, and the predictions that they score."""
