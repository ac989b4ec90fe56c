"""Where `Model.save` may write, and whether a directory already holds a copy of a model."""

from __future__ import annotations

import copy
import re
from itertools import islice
from pathlib import Path
from typing import Any

from mtkd.model_files import EXPORT
from mtkd.models.digest import digest_weights
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import MODEL_FILES
from mtkd.output_files.output_directory import has_claim, visible_files
from mtkd.run_record import RUN_FILE
from tasks.common.errors import UserError, shorten

_OTHER_DIRECTORY = "name another directory"
_MAX_FILES = 100  # that are inspected, since the path may be a whole disk


def holds_copy(path: Path, module: MultiTaskModel, overwrite: bool) -> bool:
    """Whether `Model.save` need not write to a directory, since it holds a saved copy of the model.

    Raises:
        UserError: the model may not be written there.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file", expected="a directory", hint=_OTHER_DIRECTORY)
    if path.name == "model" and (path.parent / RUN_FILE).is_file():
        raise UserError(f"{path} is a part of the run {path.parent}", hint=_OTHER_DIRECTORY)
    files = list(islice(visible_files(path), _MAX_FILES)) if path.is_dir() else []
    others = [file for file in files if not re.fullmatch(MODEL_FILES, file)]
    if has_claim(path) or RUN_FILE in files or EXPORT in files:
        what = "an export" if EXPORT in files else "a run" if RUN_FILE in files else "an unfinished output"
        raise UserError(f"{path} holds {what}, which a saved model does not replace", hint=_OTHER_DIRECTORY)
    if files and (others or "model.json" not in files):
        names = shorten(others or files)
        raise UserError(
            f"{path} holds files that do not belong to a saved model: {names}", hint=_OTHER_DIRECTORY
        )
    if not files or overwrite:
        return False
    if not is_saved_in(path, module):
        raise UserError(
            f"{path} holds another model", hint="replace it with `overwrite=True`, or name another directory"
        )
    return True


def with_valid_scores(module: MultiTaskModel, scored: str | None) -> MultiTaskModel:
    """The module, or a copy without recorded scores if its weights have changed since they were measured.

    Args:
        scored: the digest of the weights that were scored; None if they cannot have changed.
    """
    if scored is None or not module.info.scores or digest_weights(module) == scored:
        return module
    changed = copy.copy(module)  # with the same weights
    changed.info = module.info.without_scores()
    return changed


def is_saved_in(directory: Path, module: MultiTaskModel) -> bool:
    """Whether a directory holds the weights and the description of a model in memory."""

    def described(model: MultiTaskModel) -> Any:
        return digest_weights(model), model.tasks, model.info, model.encoder.config

    try:
        return bool(described(MultiTaskModel.load(directory)) == described(module))
    except UserError:  # it is damaged
        return False
