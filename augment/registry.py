"""Augmenters of rows by name: the built-in ones, and those that other installed packages add.

A package adds one as an entry point of the group `mtkd.augmenters`, whose value is a class that follows
`augment.augmenter.Augmenter` and takes its settings as keyword arguments. `mtkd augment run NAME` runs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from augment.augmenter import Augmenter
from augment.masking import Masking
from augment.replacement import Replacement
from tasks.errors import UserError, unknown
from tasks.plugins import load_plugins

GROUP = "mtkd.augmenters"
# Questions are made from plain paragraphs, not from rows of tasks: `augment.questions.generation.config`.
AUGMENTERS: dict[str, type[Augmenter]] = {"mask": Masking, "replace": Replacement}


def build_augmenter(name: str, settings: Mapping[str, Any]) -> Augmenter:
    """The augmenter of a name with its settings.

    Raises:
        UserError: an unknown name or setting, a missing setting, a value that the augmenter refuses, or a
            plugin that cannot be loaded.
    """
    known = AUGMENTERS | load_plugins(GROUP, AUGMENTERS)
    if name not in known:
        questions = "questions about paragraphs: mtkd augment questions generate"
        raise unknown("augmenter", name, known, hint=questions if name == "questions" else None)
    parameters = inspect.signature(known[name]).parameters
    for setting in settings:
        if setting not in parameters:
            raise unknown(f"setting of {name}", setting, parameters)
    required = [key for key, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    if missing := [key for key in required if key not in settings]:
        raise UserError(
            f"the augmenter {name!r} needs {', '.join(missing)}",
            hint=f"give the setting {missing[0]!r} a value",
        )
    try:
        return known[name](**settings)
    except (TypeError, ValueError) as error:
        raise UserError(f"the augmenter {name!r} does not accept these settings: {error}") from error
