"""Check that a student and its control, which trains for as many steps, are the same model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mtkd.pipelines.step import Step, check_step, training_settings
from mtkd.recipes.loading import dotted


def different_students(steps: Iterable[Step]) -> Iterator[str]:
    """A message for each `distill` step with `steps = "@NAME"` whose student is not that of the step NAME.

    Such a step is usually the control of the other one. Only how their weights start may differ.
    """
    by_name = {step.name: step for step in steps}
    for control in by_name.values():
        student = by_name.get(control.steps_of or "")
        if student is None or {student.command, control.command} != {"distill"}:
            continue
        of_student, of_control = _student_settings(student), _student_settings(control)
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


def _student_settings(step: Step) -> dict[str, Any]:
    """The settings of a step's student, except those that only say how its weights start."""
    settings = training_settings(step.command, check_step(step)).student.model_dump(mode="json")
    flat = dotted({"student": settings}).items()
    return {key: value for key, value in flat if not key.rpartition(".")[2].startswith("init")}
