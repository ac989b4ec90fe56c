"""Augmenters of rows by name: the built-in ones and those registered by other installed packages.

A package registers an augmenter with an entry point of the group `mtkd.augmenters` that names a class
following `augment.augmenter.Augmenter`. The class takes its settings as keyword arguments, and
`mtkd augment run NAME` runs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from augment.augmenter import Augmenter
from augment.contextual import Contextual
from augment.masking import Masking
from augment.replacement import Replacement
from tasks.common.arguments import checked_values, hints_of
from tasks.common.errors import UserError, unknown
from tasks.common.plugins import load_plugin, load_plugins

GROUP = "mtkd.augmenters"
# Questions are made from plain paragraphs, not from task rows: see `augment.questions.generation`.
AUGMENTERS: dict[str, type[Augmenter]] = {
    "contextual": Contextual,
    "mask": Masking,
    "replace": Replacement,
}


def build_augmenter(name: str, settings: Mapping[str, Any]) -> Augmenter:
    """Build an augmenter from its name and settings.

    Raises:
        UserError: the name or a setting is unknown, a setting is missing, the augmenter rejects a value, or a
            plugin cannot be loaded.
    """
    augmenter = AUGMENTERS.get(name) or load_plugin(GROUP, name)
    if augmenter is None:
        names = AUGMENTERS | load_plugins(GROUP, AUGMENTERS)
        questions = "questions about paragraphs: `mtkd.augment.generate_questions`"
        raise unknown("augmenter", name, names, hint=questions if name == "questions" else None)
    parameters = inspect.signature(augmenter).parameters
    for setting in settings:
        if setting not in parameters:
            raise unknown(f"setting of {name}", setting, parameters)
    settings = checked_values(settings, hints_of(augmenter), what=f"the augmenter {name!r}")
    required = [key for key, parameter in parameters.items() if parameter.default is inspect.Parameter.empty]
    if missing := [key for key in required if key not in settings]:
        raise UserError(
            f"the augmenter {name!r} needs {', '.join(missing)}",
            hint=f"pass `settings={{{missing[0]!r}: ...}}`",
        )
    try:
        return augmenter(**settings)
    except (TypeError, ValueError) as error:
        raise UserError(f"the augmenter {name!r} does not accept these settings: {error}") from error
