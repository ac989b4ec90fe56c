"""The warnings of `mtkd data check` about labels, for rows that a run has loaded."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tasks.checks.label_balance import Balance
from tasks.checks.label_quality import GroupSizes, label_problems, labels_alike, unmeasured_classes
from tasks.data.row_checks import Problem
from tasks.data.rows import STEP, Rows
from tasks.data.sources import DataSource
from tasks.task import Task
from tasks.task_types.labels import ParsedLabels


def label_warnings(source: DataSource, task: Task, train: Rows, validation: Mapping[str, Rows]) -> list[str]:
    """Warnings about the labels of a task, each of which names the split and its file.

    Args:
        train: the rows of the training split; there may be none.
        validation: split -> all its rows.
    """
    warnings = [f"{task.name}: {text}" for text in labels_alike(task)]
    trained: dict[str, int] = {}
    for rows in (train, *validation.values()):
        if not len(rows):
            continue
        balance = Balance(task, rows.split)
        for start in range(0, len(rows), STEP):
            balance.add(ParsedLabels(rows.labels[start : start + STEP], []))
        counts = {count.label: count.rows for count in balance.counts()}
        trained = trained or counts
        files = source.split_files(task, rows.split)
        place = f"{task.name}/{rows.split}" + (f" ({files.display_path})" if files else "")
        problems = label_problems(task, rows.split, place, balance) + _group_problems(task, rows, place)
        problems += unmeasured_classes(task, rows.split, place, counts, trained)
        warnings += map(str, problems)
    return warnings


def _group_problems(task: Task, rows: Rows, place: str) -> list[Problem]:
    """Warnings about the groups of a `rank` task, which are named by their first row."""
    groups = rows.groups
    if groups is None:
        return []
    sizes = GroupSizes(task)
    sizes.add(pa.array(groups), rows.labels)
    return sizes.problems(place, lambda group: f"that of {rows.uids[int((groups == group).argmax())]}")
