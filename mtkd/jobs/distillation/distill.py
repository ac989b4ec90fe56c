"""Distil: train a student on tasks from a teacher, or, for comparison, from labels alone."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from mtkd.jobs.class_weights import check_class_weights
from mtkd.jobs.distillation.distill_tasks import TaskDistillation
from mtkd.jobs.distillation.python_objects import (
    Losses,
    StateOfLosses,
    copies_of_losses,
    describe_losses,
    describe_module,
    parse_losses,
    require_trainable,
)
from mtkd.jobs.distillation.unlabelled_rows import (
    check_unlabelled_settings,
    usable_request,
)
from mtkd.jobs.distillation.validate import settings_of_student, validate_run
from mtkd.jobs.distillation.validated_run import ValidatedRun
from mtkd.jobs.request import Request
from mtkd.jobs.training_corpus import recorded_paths
from mtkd.jobs.training_data import trainable_tasks
from mtkd.jobs.training_job import Warn, ignore_warning
from mtkd.jobs.validation_scores import check_metric
from mtkd.losses.objective import teacher_need_of
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import OutputSpec
from mtkd.precision import resolve_precision
from mtkd.settings import DistillSettings
from mtkd.teachers.teacher_names import LabelsSpec, TeacherSpec, describe_teachers, parse_labels
from mtkd.torch_state import trains
from mtkd.training.callbacks import Callback
from mtkd.training.run_directory import RunDirectory
from tasks.common.errors import UserError
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import Task
from tasks.task_names import TASKS

_SIMILAR = 0.8  # the similarity of two task names, above which one may be a misspelling of the other


@trains
def distill(
    request: Request,
    settings: DistillSettings,
    teacher: TeacherSpec,
    corpora: Sequence[Path] = (),
    store: Path | None = None,
    *,
    teacher_labels: LabelsSpec = None,
    unlabelled: UnlabelledRequest = UnlabelledRequest(),  # noqa: B008 (it is frozen)
    student: nn.Module | None = None,
    losses: Losses | None = None,
    callbacks: Sequence[Callback] = (),
    warn: Warn = ignore_warning,
) -> RunDirectory:
    """Train one student for all tasks of the request, stage by stage.

    Args:
        teacher: a run of `refine` (or any mtkd model with a head for each task), a fine-tuned transformers
            checkpoint, a model object, or several by task (see
            `mtkd.teachers.teacher_names.teachers_by_task`). If no term needs logits, it can also be
            a pretrained encoder; None only if no term needs a teacher, or if the rows have soft labels.
        corpora: augmented corpora whose rows are added to the training rows.
        store: a knowledge store to use instead of running the teacher.
        teacher_labels: task -> its labels in the order of the outputs of a transformers checkpoint.
        unlabelled: the unlabelled rows that the student also learns from; by default those that the tasks
            name.
        student: a student to train, instead of one built from the settings: a MultiTaskModel (missing heads
            are added, heads of other tasks removed) or an encoder that reads the teacher's tokens.
        losses: loss terms instead of those of the settings, in a single stage: objects or settings; the terms
            of a list are named after their classes.
        callbacks: called during training.
        warn: called with each warning: before training, and about the scores after it.

    Returns:
        The finished run.

    Raises:
        UserError: invalid data, teacher, corpus or settings; raised before anything is written.
        Interrupted: Ctrl-C or SIGTERM, after writing a checkpoint.
    """
    settings = resolve_precision(settings, request.device, warn)
    tasks = trainable_tasks(request.tasks, request.data)
    terms = None if losses is None else parse_losses(losses)
    if isinstance(student, MultiTaskModel):
        settings = settings_of_student(settings, student)
    labels_only = settings.supervision == "labels"
    if terms is not None:
        labels_only = labels_only or all(teacher_need_of(term) == OutputSpec() for term in terms.values())
    teacher_is_optional = labels_only or any(task.soft_labels for task in tasks)
    sources: dict[str, Any] = _source_names(settings, teacher, corpora, store, teacher_is_optional)
    if teacher_labels:
        sources["teacher_labels"] = parse_labels(teacher_labels)
    if student is not None:
        require_trainable(student)
        sources["student"] = describe_module(student)
    if terms is not None:
        sources["losses"] = describe_losses(terms)
        terms = copies_of_losses(terms)
        callbacks = [*callbacks, StateOfLosses(terms, warn)]
    validated = validate_run(
        settings, teacher, tasks, store, teacher_labels=teacher_labels, student=student, losses=terms
    )
    sources |= unlabelled.record()
    usable = usable_request(unlabelled, validated.stages, tasks)
    _check_training(validated, with_unlabelled=usable is not None)
    job = TaskDistillation(
        request=request,
        settings=validated.settings,
        tasks=tasks,
        sources=sources,
        callbacks=callbacks,
        warn=warn,
        validated=validated,
        corpora=corpora,
        unlabelled=usable,
        student=student,
    )
    job.warnings += [*validated.warnings, *_per_task_warnings(settings, tasks)]
    return job.run()


def _check_training(validated: ValidatedRun, with_unlabelled: bool) -> None:
    """Check that the training settings of each stage fit the tasks; raises UserError."""
    tasks = validated.tasks
    for stage, objective in validated.stages:
        check_class_weights(stage.train, tasks, objective)
        check_metric(stage.train.metric, tasks)
        check_unlabelled_settings(stage.train, validated, tasks, with_unlabelled)


def _per_task_warnings(settings: DistillSettings, tasks: Sequence[Task]) -> list[str]:
    """Warnings about settings for single tasks that a run does not use: misspelt, or for that task alone."""
    warnings = []
    for name in sorted(settings.per_task.keys() - TASKS.keys()):
        if similar := difflib.get_close_matches(name, [task.name for task in tasks], 1, _SIMILAR):
            warnings.append(
                f"the recipe {settings.name} has settings for {name!r}, which is not a task of this run (did "
                f"you mean {similar[0]!r}?)"
            )
    names = [task.name for task in tasks if task.name in settings.per_task]
    if len(tasks) < 2 or not names:
        return warnings
    keys = dict.fromkeys(key for name in names for key in settings.per_task[name])
    used = ", ".join(f"{key} = {_setting_value(settings, key)}" for key in keys)
    return [
        *warnings,
        f"the settings that {settings.name} has for {', '.join(names)} apply only in a run on that task "
        f"alone. This run uses {used}.",
    ]


def _setting_value(settings: DistillSettings, key: str) -> Any:
    """The value of a dotted setting; a stage without a value of its own has that of `train`."""
    section, _, name = key.rpartition(".")
    if section.startswith("stages."):
        stage = settings.stages.get(section.split(".")[1])
        return stage.train.get(name, getattr(settings.train, name, None)) if stage else None
    value: Any = settings.model_dump()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _source_names(
    settings: DistillSettings,
    teacher: TeacherSpec,
    corpora: Sequence[Path],
    store: Path | None,
    teacher_is_optional: bool,
) -> dict[str, Any]:
    """The names of teacher, corpora and store for the run's record.

    Args:
        teacher_is_optional: True if the student can learn without a teacher.

    Raises:
        UserError: a needed teacher is missing, or a corpus is given to a run that learns from labels alone.
    """
    if not (teacher or store or teacher_is_optional):
        raise UserError(
            f"the recipe {settings.name} needs a teacher",
            hint="pass a run of `mtkd.refine`, or a fine-tuned checkpoint, as `teacher='DIR'`, a knowledge "
            "store as `store='DIR'`, or train on labels alone with `settings={'supervision': 'labels'}`",
        )
    if corpora and settings.supervision == "labels":
        raise UserError(
            "supervision=labels cannot use an augmented corpus: its rows have no labels",
            hint="leave `corpus` out",
        )
    names = {"teacher": describe_teachers(teacher), "corpus": recorded_paths(corpora)}
    return {**names, "store": str(store)} if store else names
