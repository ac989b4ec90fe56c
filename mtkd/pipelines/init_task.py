"""The task of the data for `mtkd init`: guess it, name it, and validate the rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from mtkd.pipelines.init_data import Part, without_role
from tasks.common.errors import UserError
from tasks.common.reading import real_path
from tasks.data.appended_rows import checked_batches
from tasks.data.loading import require_valid
from tasks.data.schema import fit_columns
from tasks.glue import TASKS
from tasks.guess import Guess, guess_task
from tasks.task import UNLABELLED, Task
from tasks.task_file import check_task
from tasks.task_keys import A_NAME, is_name
from tasks.task_names import GROUPS

_OWN = "-own"  # ends the names of tasks that would otherwise be called like built-in ones


def guess_from_splits(
    splits: Mapping[str, Part],
    columns: Sequence[str],
    label: str | None,
    kind: str | None,
    least_labels: int = 2,
) -> Guess:
    """Guess the task from training and validation rows, since some labels may occur in only one of them.

    Args:
        columns, label, kind: the text columns, the label column and the task type, as far as the user gives
            them; the rest is guessed.
        least_labels: the number of labels that a task of classes needs.
    """
    train = splits["train"]
    tables = [train.raw.table]
    names = tables[0].column_names
    validation = splits.get("validation")
    if validation and len(names) == 1:
        raise UserError(
            f"{train.raw.path} has one column, {names[0]!r}, "
            f"and the rows of {validation.raw.path} are for validation",
            expected="labelled training rows, too, from which the pipeline's control learns",
            hint=f"pass {validation.raw.path} alone as the data, of which some rows are then set aside for "
            f"validation, with `unlabelled=[{train.raw.path!r}]`; for a student without a control, write a "
            "task file (docs/unlabelled.md#without-labelled-training-rows)",
        )
    if validation and set(names) <= set(validation.raw.table.column_names):
        tables.append(validation.raw.table.select(names))
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        table = tables[0]

    def location(row: int) -> str:
        count = len(tables[0])
        return (
            validation.raw.location(row - count) if validation and row >= count else train.raw.location(row)
        )

    hints = {"columns": columns, "label": label, "kind": kind, "least_labels": least_labels}
    return guess_task(table, train.raw.path, location=location, **hints)  # type: ignore[arg-type]


def task_from_guess(name: str, guess: Guess) -> Task:
    """The task that was guessed, with the default metrics of its type."""
    fields = {"labels": guess.labels, "range": guess.range, "unanswerable": guess.unanswerable}
    task = Task(name, guess.kind, guess.columns, label=guess.label, **fields)  # type: ignore[arg-type]
    return check_task(replace(task, metrics=task.type.default_metrics))


def choose_task_name(requested: str | None, names: Sequence[str]) -> str:
    """The name of the task: the requested one, or that of the file, its directory or the data set.

    The part of a file's name that says which split it holds is left out: reg_train.csv gives `reg`. The name
    of a built-in task or group of tasks is extended: rte.csv gives `rte-own`.
    """
    if requested in TASKS or requested in GROUPS:
        what = "task" if requested in TASKS else "group of tasks"
        raise UserError(f"`name={requested!r}` is a built-in {what}", hint="choose another name")
    if requested is not None and not is_name(requested):
        raise UserError(f"`name={requested!r}` cannot be the name of a task", expected=A_NAME)
    if requested is not None:
        return requested
    path = Path(names[0].partition(":")[0])
    stem = without_role(path.name.split(".")[0])
    stem = real_path(path).parent.name if stem.lower() in ("", "data") else stem
    name = re.sub(r"[^A-Za-z0-9_]+", "-", stem).strip("-")
    name = name if name[:1].isalpha() else f"task-{name}".strip("-")
    return f"{name}{_OWN}" if name in TASKS or name in GROUPS else name


def name_notes(name: str, requested: str | None) -> list[str]:
    """A note if the name of the task differs from that of its file (see `choose_task_name`)."""
    of_file = name.removesuffix(_OWN)
    if requested is not None or of_file == name or (of_file not in TASKS and of_file not in GROUPS):
        return []
    what = "task" if of_file in TASKS else "group of tasks"
    return [
        f"the task is called {name!r}, because {of_file!r} is a built-in {what}; to change it: `name='NAME'`"
    ]


def validate_rows(task: Task, split: str, part: Part) -> None:
    """Validate the rows of a split as training does, but training and test rows may lack labels."""
    if split == UNLABELLED:
        for _ in checked_batches(task, iter([part.raw])):
            pass
        return
    lenient = replace(task, test=("train", "test"))
    raw = replace(part.raw, table=fit_columns(lenient, split, part.raw))
    require_valid(lenient, split, raw, raw.path)
