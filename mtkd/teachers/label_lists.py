"""Lists of labels as text: with commas, or as JSON where a label itself contains a comma."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tasks.common.errors import UserError


def parse_label_list(text: str, task: str) -> list[str]:
    """The labels of a text such as `a,b,c` or `["a, or b", "c"]`.

    Args:
        task: the task that they belong to, for messages.

    Raises:
        UserError: the text starts like JSON, but is not a list of strings.
    """
    if not text.lstrip().startswith("["):
        return [label.strip() for label in text.split(",")]
    try:
        labels = json.loads(text)
        problem = "is not a list of strings"
    except ValueError as error:
        labels, problem = None, f"is not valid JSON ({error})"
    if isinstance(labels, list) and all(isinstance(label, str) for label in labels):
        return labels
    raise UserError(
        f"`teacher_labels={f'{task}={text}'!r}` {problem}",
        expected='TASK=label,label,... or, for labels that contain commas, TASK=["label", "label", ...]',
        hint="put the value in single quotes, so that the shell keeps the double quotes",
    )


def label_list(labels: Sequence[str]) -> str:
    """The shortest text that `parse_label_list` reads as these labels."""
    text = ",".join(labels)
    plain = not text.startswith("[") and [label.strip() for label in text.split(",")] == list(labels)
    return text if plain else json.dumps(list(labels), ensure_ascii=False)
