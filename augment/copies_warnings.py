"""Warnings about a finished corpus of copies."""

from __future__ import annotations

from tasks.common.errors import counted
from tasks.data.corpus_reader import CorpusManifest

_MAX_UNCHANGED = 0.25


def copies_warnings(manifest: CorpusManifest) -> list[str]:
    """Warnings about rows without text, and about tasks with many copies in which no word is changed."""
    if manifest.kind != "copies":
        return []
    warnings = []
    for task in manifest.tasks:
        if n_blank := task.source_rows - task.rows // task.copies:
            are = "has no text and was" if n_blank == 1 else "have no text and were"
            warnings.append(f"{counted(n_blank, 'row')} of {task.name} {are} not copied")
        p = manifest.settings.get("p")
        if p is not None and task.unchanged > _MAX_UNCHANGED:
            warnings.append(
                f"no word is changed in {task.unchanged:.1%} of the copies of {task.name}; "
                f"raise `p` (now {p}) to change more of them"
            )
    return warnings
