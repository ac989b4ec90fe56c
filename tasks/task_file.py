"""Custom tasks: one TOML file per task, accepted wherever a task name is.

    name = "quora"                          # not the name of a built-in task
    kind = "classify"                       # a task type: classify, regress, rank, span, multilabel
    columns = ["question1", "question2"]    # one or two text columns (span: question, context)
    labels = ["not_duplicate", "duplicate"] # in the order of their ids (classify, rank, multilabel)
    label = "label"                         # the label column
    range = [0.0, 5.0]                      # lowest and highest score (regress)
    group = "question"                      # rows with equal values are candidates of one group (rank)
    positive = "entailment"                 # the right candidate's label (rank)
    metrics = ["accuracy"]
    groups = ["nli"]                        # groups of tasks that it belongs to
    head = "mnli"                           # evaluate and predict with a model's head for that task, ...
    map = { neutral = "other", ... }        # ... whose labels become those of this task (classify)
    copies = 10                             # masked copies per row
    unanswerable = true                     # there may be no answer in the context (span)
    max_answer_tokens = 30                  # longer answers are not predicted (span)
    languages = ["en", "de"]                # of answers, compared as in MLQA: validation_de is German, splits
                                            # without a language are in the first (span)
    soft_labels = "probs"                   # training rows: a teacher's numbers, one per label
    soft_labels_kind = "probabilities"      # or "logits"; by default decided from the values
    extends = "qnli"                        # take the other keys from a built-in task

    [files]                                 # split -> file; splits: train, validation*, test*
    train = "extra/train.parquet"
    unlabelled = "extra/more-*.parquet"     # unlabelled rows: a file, a pattern, or a list of these

Without `[files]` the rows are searched under the task's name, as for built-in tasks.
"""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tasks.common.errors import UserError, unknown
from tasks.common.mirror import Mirror
from tasks.common.reading import real_path, require_file
from tasks.common.records import read_toml
from tasks.common.toml_kinds import refuse_other_kind
from tasks.common.urls import as_url, url_of
from tasks.data.soft_labels import can_have_soft_labels
from tasks.glue import TASKS
from tasks.task import UNLABELLED, Task
from tasks.task_keys import KEYS, expected_value, parse_value
from tasks.task_names import refuse_group_name
from tasks.task_types import check_metrics, task_type, task_type_names

_CHECKED = (
    *("name", "head", "kind", "columns", "labels", "range", "group", "soft_labels", "soft_labels_kind"),
    "copies",
)
# The keys that only some task types have (`TaskType.fields`).
_OF_TYPES = ("labels", "range", "group", "positive", "unanswerable", "max_answer_tokens", "languages")
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Task)}


def load_task(path: Path) -> Task:
    """Read a task from its TOML file; the keys are listed in the docstring of this module.

    Relative files are taken from the directory of the TOML file if they exist there, otherwise from the data
    directory. Files may also be URLs.

    Raises:
        UserError: the file is missing or not TOML, a key is unknown, or a value is invalid.
    """
    values = read_toml(require_file(path, "a task file (.toml)"))
    refuse_other_kind(path, values, "task file")
    for key in values:
        if key not in KEYS:
            raise unknown(f"key in {path}:", key, KEYS)
    fields = {key: parse_value(path, key, value) for key, value in values.items()}
    base = fields.pop("extends", None)
    if base is not None and base not in TASKS:
        raise unknown(f"task to extend in {path}:", base, TASKS)
    files = fields.pop("files", None)
    if files is not None:
        fields |= _file_fields(path, files)
    task = _extended_task(path, TASKS[base], fields) if base else _new_task(path, fields)
    _check(path, task, fields)
    return task


def _new_task(path: Path, fields: dict[str, Any]) -> Task:
    for key in ("name", "kind", "columns"):
        if key not in fields:
            raise UserError(f"{path} lacks the key {key!r}", expected=expected_value(key))
    refuse_group_name(path, fields["name"])
    if fields["name"] in TASKS:
        raise UserError(
            f"{path}: name = {fields['name']!r} is a built-in task",
            hint=f"choose another name, or write extends = {fields['name']!r} to change the built-in one",
        )
    fields.setdefault("metrics", task_type(fields["kind"]).default_metrics)
    return Task(**fields)


def _extended_task(path: Path, base: Task, fields: dict[str, Any]) -> Task:
    name = fields.get("name", base.name)
    refuse_group_name(path, name)
    if fields.get("kind", base.kind) != base.kind:
        kind = task_type(fields["kind"])
        unused = {key: _DEFAULTS[key] for key in _OF_TYPES if key not in kind.fields}
        base = dataclasses.replace(base, kind=fields["kind"], metrics=kind.default_metrics, **unused)
    fields = {"head": name if base.head == base.name else base.head} | fields
    return dataclasses.replace(base, **fields)


def _file_fields(path: Path, files: dict[str, Any]) -> dict[str, Any]:
    """The task's split names and files; paths beside the TOML file are made absolute."""
    unlabelled = files.pop(UNLABELLED, [])
    patterns = [unlabelled] if isinstance(unlabelled, str) else unlabelled
    fields = {UNLABELLED: tuple(_beside(path, pattern) for pattern in patterns)}
    if not files:
        return fields
    trains = "train" in files or bool(patterns)  # a student can learn from unlabelled rows alone
    return fields | _split_fields(path, files) | {"train": "train" if trains else None}


def _beside(path: Path, file: str, pattern: bool = True) -> str:
    """A file or pattern in the directory of the TOML file if there is such a file; otherwise unchanged."""
    folder, rest = real_path(path.parent), file
    while rest.startswith("../"):  # `folder` has no links, so its parent is what `..` means
        folder, rest = folder.parent, rest[3:]
    near = as_url(str(folder / rest))
    if url_of(file):
        return file
    if url_of(near):  # the TOML file is a local copy
        return near if Mirror.of(near, "inputs").versions(missing=True) else file
    return near if (glob.glob(near) if pattern else os.path.exists(near)) else file


def _split_fields(path: Path, files: dict[str, str]) -> dict[str, Any]:
    return {
        "files": {split: _beside(path, file, pattern=False) for split, file in files.items()},
        "validation": tuple(split for split in files if split.startswith("validation")),
        "test": tuple(split for split in files if split.startswith("test")),
    }


def check_task(task: Task, where: str = "mtkd.Task") -> Task:
    """Validate a task that was made in Python or read from a model, and return it.

    Args:
        where: start of the message, such as the file.

    Raises:
        UserError: a field is invalid, or fields contradict each other.
    """
    where = f"{where} {task.name!r}"
    for key in _CHECKED:
        value = getattr(task, key)
        if value not in (None, ()) or key == "columns":
            parse_value(where, key, list(value) if isinstance(value, tuple) else value)
    keys = [key for key in _OF_TYPES if key != "languages"]  # which also the built-in task xnli has
    _check(where, task, [key for key in keys if getattr(task, key) != _DEFAULTS[key]])
    return task


def _check(path: Path | str, task: Task, given: Collection[str]) -> None:
    """Check that the fields are consistent; `given` are the keys that the user has set."""
    for key in _OF_TYPES:
        if key in given and key not in task.type.fields:
            allowed = [kind for kind in task_type_names() if key in task_type(kind).fields]
            raise UserError(
                f"{path}: {task.kind} tasks have no key {key!r}", expected=f"kind {' or '.join(allowed)}"
            )
    if task.map:
        _check_map(path, task, "head" in given)
    try:
        task.type.check(task)
        check_metrics(task)
    except UserError as error:
        raise UserError(f"{path}: {error.problem}", expected=error.expected, hint=error.hint) from error
    if task.soft_labels and not can_have_soft_labels(task):
        raise UserError(
            f"{path}: {task.kind} tasks cannot have soft labels",
            expected="kind classify, multilabel or regress",
        )
    taken = [task.label, *([task.group] if task.group and task.group not in task.columns else [])]
    taken += [task.soft_labels] if task.soft_labels else []
    if len({*task.columns, *taken}) < len(task.columns) + len(taken):
        raise UserError(
            f"{path}: one column has two roles: {', '.join([*task.columns, *taken])}",
            expected="different columns for texts, labels, groups and soft labels",
        )


def _check_map(path: Path | str, task: Task, has_head: bool) -> None:
    if task.kind != "classify":
        raise UserError(f"{path}: {task.kind} tasks have no key 'map'", expected="kind classify")
    if not has_head and task.head == task.name:
        raise UserError(
            f"{path}: `map` is set, but `head` is not",
            hint="`head` names the task whose head predicts this one",
        )
    for label in task.map.values():
        if label not in task.labels:
            raise unknown(f"label in {path}, map:", label, task.labels)
    if unmapped := [label for label in task.labels if label not in task.map.values()]:
        raise UserError(
            f"{path}: map has no label that becomes {unmapped[0]!r}",
            hint="map a label to it, or leave it out",
        )
