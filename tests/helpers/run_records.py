"""The record (run.json) of a finished run, for tests that need no run."""

from __future__ import annotations

from typing import Any


def finished_record(**values: Any) -> dict[str, Any]:
    """A record with all keys that the record of a finished run must have; `values` are added or replaced."""
    return {
        "status": "finished",
        "identity": {},
        "versions": {"mtkd": "1.2.3"},
        "machine": "a machine",
        "parameters": {"total": 3, "embeddings": 2, "without_embeddings": 1},
        "scores": {},
        "training": {"steps": 1},
        **values,
    }
