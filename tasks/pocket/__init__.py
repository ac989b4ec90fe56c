"""The pocket tasks: small versions of all GLUE tasks and SQuAD, written by a seeded generator."""

from tasks.pocket.source import POCKET_SPLITS, generate, has_unlabelled

__all__ = ["POCKET_SPLITS", "generate", "has_unlabelled"]
