"""The control of a recipe: the same student, trained on the labels alone."""

from __future__ import annotations

from typing import Any

from mtkd.settings import DistillSettings
from tasks.common.errors import UserError


def control_settings(settings: DistillSettings) -> dict[str, Any]:
    """The settings with which a student learns from labels alone, and starts from no weights of its teacher.

    Raises:
        UserError: the student is pruned from its teacher.
    """
    control: dict[str, Any] = {"supervision": "labels"}
    transformer = getattr(settings.student, "transformer", None)
    if transformer is not None and transformer.prune:
        raise UserError(
            f"the student of {settings.name} is pruned from its teacher, so it cannot be trained without the "
            "teacher as a control",
            hint="choose another recipe: `mtkd.list_recipes()`",
        )
    if transformer is not None and transformer.init == "teacher":
        control["student.transformer.init"] = "encoder"
    if settings.student.init_heads == "teacher":
        control["student.init_heads"] = "auto"
    if settings.slow_build:
        control["slow_build"] = 0.0
    return control
