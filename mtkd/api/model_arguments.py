"""Convert models that are passed to the functions of `mtkd` to what the jobs read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mtkd.api.argument_types import Model
from mtkd.api.saved_copies import is_saved_in, with_valid_scores
from mtkd.jobs.open_model import EvaluatedModel
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import model_file_digests
from mtkd.teachers.teacher_names import as_pair
from tasks.common.errors import UserError, a_type


def own_directory(model: Model) -> Path | None:
    """The directory of a model; None if it has none, or if it no longer holds the files of the model."""
    if (path := model.path) is None:
        return None
    try:
        return path if model_file_digests(path) == model._digests else None
    except UserError:
        return None


def current_source(model: Model) -> Path | MultiTaskModel:
    """What a job reads: the directory of a model, or its module if the directory does not hold its weights.

    Raises:
        UserError: the files of the model were replaced before it was loaded.
    """
    directory, module = own_directory(model), model._module
    if directory is None or (
        module is not None and model._scored is not None and not is_saved_in(directory, module)
    ):
        return model._loaded()
    return directory


def evaluated_model(argument: str, model: Any) -> EvaluatedModel | None:
    """Convert an argument of type `AnyModel` to what `mtkd.jobs.open_model` takes.

    Args:
        argument: the name of the argument, for the error.

    Raises:
        UserError: the argument is not a model; a pair must be a transformers model and its fast tokeniser.
    """
    if model is None or isinstance(model, MultiTaskModel):
        return model
    if isinstance(model, str | Path | Model):
        return path_or_module(model)
    pair = as_pair(model)
    if pair is None:
        raise UserError(
            f"`{argument}` cannot be {a_type(model)}",
            expected="a directory or name, a model, a transformers pipeline, or a pair (transformers model, "
            "fast tokeniser)",
        )
    return pair


def path_or_module(model: str | Path | Model | None) -> Path | MultiTaskModel | None:
    """The directory of a model whose weights are not loaded yet; otherwise its module."""
    if not isinstance(model, Model):
        return Path(model) if model is not None else None
    if model._module is None:
        return current_source(model)
    return with_valid_scores(model._module, model._scored)


def path_of(model: Any) -> Path | None:
    """The directory that a loaded model was read from; None for anything else."""
    return model.path if isinstance(model, Model) else None
