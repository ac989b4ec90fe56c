"""What a model was trained from: its pretrained encoder, and the limit on its labelled rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mtkd.models.saved_model import SavedModel, is_saved_model, model_directory, read_description, read_saved
from mtkd.run_record import RUN_FILE, read_run_record
from mtkd.teachers.transformers_checkpoint import checkpoint_directory
from tasks.common.reading import real_path
from tasks.common.remote import with_local_paths


def pretrained_encoder(model: Path) -> str | None:
    """The pretrained encoder that a model, or the teacher of its run, started from; None if unknown."""
    base = read_saved(model).info.base
    if base is not None:
        return base
    identity, run = _run_identity(model), model_directory(model).parent
    if isinstance(store := identity.get("store"), str):
        return encoder_of_store(Path(_find_recorded_directory(with_local_paths(store), run)))
    start = identity.get("teacher") or identity.get("model")
    return encoder_of_teacher(_find_recorded_directory(start, run)) if isinstance(start, str) else None


def label_limit(model: Path) -> int | None:
    """The maximum number of labelled rows per task that a model's run read; None if it had no limit."""
    limit: int | None = _run_identity(model).get("limit") if is_saved_model(model) else None
    return limit


def _run_identity(model: Path) -> dict[str, Any]:
    """The identity in the record of a model's run; empty if the model is not in a run."""
    record = model_directory(model).parent / RUN_FILE
    identity: dict[str, Any] = read_run_record(record)["identity"] if record.is_file() else {}
    return identity


def _find_recorded_directory(name: str, run: Path) -> str:
    """The path of a model or store that a run's record names.

    A relative path is tried in the current directory and in each directory above the run.
    """
    candidates = (parent / name for parent in real_path(run).parents)
    return name if Path(name).is_dir() else next((str(path) for path in candidates if path.is_dir()), name)


def encoder_of_store(store: Path) -> str | None:
    """The pretrained encoder that the teacher of a store started from; None if it or the store is unknown."""
    teacher = teacher_of_store(store)
    return encoder_of_teacher(teacher.info.base) if teacher and teacher.info.base else None


def teacher_of_store(store: Path) -> SavedModel | None:
    """The description of the teacher that a store was built with; None if there is no such store."""
    teacher = store / "teacher"
    return read_description(teacher) if (teacher / "model.json").is_file() else None


def encoder_of_teacher(teacher: str) -> str | None:
    """The pretrained encoder that a teacher started from, or the teacher itself if it is one."""
    teacher = with_local_paths(teacher)
    if is_saved_model(Path(teacher)):
        return pretrained_encoder(Path(teacher))
    return teacher if checkpoint_directory(teacher) is None else None
