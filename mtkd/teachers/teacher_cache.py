"""Where outputs of a teacher are kept for further students: its logits, and vectors of single tokens."""

from __future__ import annotations

import os
from pathlib import Path

from mtkd.models.saved_model import is_saved_model, model_directory
from mtkd.run_record import RUN_FILE
from mtkd.teachers.teacher_ref import TeacherObject, TeacherRef
from mtkd.time_trial import current_trial
from tasks.common.urls import cache_directory


def writable_run(teacher: TeacherRef) -> Path | None:
    """The run directory of a teacher, if its outputs can be kept there; else None."""
    if not is_saved_model(Path(teacher.name)) or current_trial():
        return None
    run = model_directory(Path(teacher.name)).parent
    return run if (run / RUN_FILE).is_file() and os.access(run, os.W_OK) else None


def token_vector_directory(teacher: TeacherRef) -> Path | None:
    """Where token vectors are kept: in the teacher's run, or in mtkd's cache if it has no writable one.

    None for a teacher in memory, and while only the time of a run is estimated.
    """
    if current_trial() or isinstance(teacher, TeacherObject) or getattr(teacher, "module", None):
        return None
    return writable_run(teacher) or cache_directory()
