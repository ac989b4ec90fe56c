"""Distillation: on the rows of tasks, and on plain text."""
