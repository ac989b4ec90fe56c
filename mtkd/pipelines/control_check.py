"""Check that a student and its control, which trains for as many steps, are the same model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mtkd.pipelines.step import Step, training_settings
from mtkd.recipes.loading import dotted


def different_students(steps: Mapping[str, Step], params: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A message for each `distill` step with `steps = "@NAME"` whose student is not that of the step NAME.

    Such a step is usually the control of the other one. Only how their weights start may differ.

    Args:
        steps: name -> step.
        params: step -> the parameters of its command, as `check_step` returns them.
    """
    for control in steps.values():
        student = steps.get(control.steps_of or "")
        if student is None or {student.command, control.command} != {"distill"}:
            continue
        of_student, of_control = (_student_settings(params[step.name]) for step in (student, control))
        differing = [key for key in of_student if of_control.get(key) != of_student[key]]
        if "student.kind" in differing:  # all others follow from it
            differing = ["student.kind"]
        if differing:
            values = [f"{key} ({of_student[key]!r}, {of_control.get(key)!r})" for key in differing]
            yield (
                f"the students of the steps {student.name!r} and {control.name!r} differ in "
                f"{', '.join(values)}. If {control.name!r} is the control of {student.name!r}, set the same "
                "in both; otherwise this changes the difference between their scores."
            )


def _student_settings(params: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a student, except those that only say how its weights start."""
    settings = training_settings("distill", params).student.model_dump(mode="json")
    flat = dotted({"student": settings}).items()
    return {key: value for key, value in flat if not key.rpartition(".")[2].startswith("init")}
