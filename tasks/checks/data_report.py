"""`mtkd data check`: a report on the splits of each task and every problem in them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tasks.checks.label_quality import labels_alike, unmeasured_classes
from tasks.checks.overlap import overlap_warnings
from tasks.checks.split_report import SplitReport, report_split, report_unlabelled
from tasks.common.errors import UserError, counted, shorten
from tasks.data.appended_rows import append_unlabelled
from tasks.data.raw_table import Level
from tasks.data.row_checks import Problem, summarise
from tasks.data.rows import ANSWERS, Rows
from tasks.data.sources import DataSource
from tasks.data.training_rows import unlabelled_rows_suffice
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import UNLABELLED, Task

if TYPE_CHECKING:
    from tasks.tokens.tokeniser import Tokeniser


@dataclass(frozen=True)
class DataReport:
    """The result of `report_on`.

    Attributes:
        source: the name of the data.
        splits: the splits that could be read, task by task.
        problems: problems that concern a whole task, such as missing or unreadable splits.
    """

    source: str
    splits: tuple[SplitReport, ...]
    problems: tuple[Problem, ...]

    @property
    def all_problems(self) -> tuple[Problem, ...]:
        """The report's own problems, then those of its splits."""
        return (*self.problems, *(problem for split in self.splits for problem in split.problems))

    @property
    def error_count(self) -> int:
        """The number of errors (warnings are not counted)."""
        return sum(problem.level == "error" for problem in self.all_problems)

    def __str__(self) -> str:
        """One line per split, and the problems."""
        splits = [
            f"{split.task}/{split.split}: {counted(split.rows, 'row')}, "
            + counted(split.duplicates, "duplicate")
            + (f", soft labels read as {split.soft_labels}" if split.soft_labels else "")
            for split in self.splits
        ]
        return "\n".join([*splits, *(f"{level}: {line}" for level, line in summarise(self.all_problems))])

    __repr__ = __str__

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        value = asdict(self)
        for record, split in zip(value["splits"], self.splits, strict=True):
            record["overlap_share"] = split.overlap_share
        return value | {"errors": self.error_count}


def report_on(
    source: DataSource,
    tasks: Sequence[Task],
    max_length: int = 128,
    unlabelled: UnlabelledRequest = UnlabelledRequest(),  # noqa: B008 (it is frozen)
    tokeniser: Tokeniser | None = None,
) -> DataReport:
    """Read every split of the tasks and report on it. Invalid data is reported, not raised.

    A task without any split, without its training split or without any validation split is an error, since
    training would refuse it. Further missing validation splits, and missing files of test splits that the
    task names, are warnings; other missing test splits are not reported.

    Args:
        max_length: the number of tokens to which a model truncates a row; longer rows give a warning.
        unlabelled: the unlabelled rows to report on; by default those that tasks and source name.
        tokeniser: the teacher's, which counts the tokens; None = the default teacher's.

    Raises:
        UserError: `unlabelled` names a task that is not among the tasks.
    """
    unlabelled.check(tasks)
    splits: list[SplitReport] = []
    problems: list[Problem] = []
    for task in tasks:
        task_splits, task_problems = _report_task(source, task, max_length, unlabelled, tokeniser)
        splits += task_splits
        problems += task_problems
    return DataReport(source.name, tuple(splits), tuple(problems))


def _report_task(
    source: DataSource,
    task: Task,
    max_length: int,
    unlabelled: UnlabelledRequest,
    tokeniser: Tokeniser | None,
) -> tuple[list[SplitReport], list[Problem]]:
    """The splits of a task that could be read, and the problems of the others and of the task itself."""
    problems = [Problem(task.name, None, message, "warning") for message in labels_alike(task)]
    present = source.splits(task)
    suffices = False
    with contextlib.suppress(UserError):  # reported below
        suffices = unlabelled_rows_suffice(source, task, unlabelled)
    if not present and not suffices:
        message = _why_missing(task, source, task.splits, f"{source.described} has no data for this task")
        return [], [*problems, Problem(task.name, None, message)]
    problems += _missing_splits(task, source, present, suffices)
    splits: list[SplitReport] = []
    train_hashes: np.ndarray | None = None
    reported_columns: set[str] = set()
    trained: dict[str, int] = {}
    for split in task.splits:
        try:
            report, text_hashes = report_split(
                task,
                split,
                source.batches(task, split),
                train_hashes,
                max_length,
                reported_columns,
                tokeniser,
            )
        except UserError as error:
            if split in present or (split in task.test and split in task.files):
                level: Level = "error" if split in present else "warning"
                problems.append(Problem(f"{task.name}/{split}", None, str(error), level))
            continue
        balance = {count.label: count.rows for count in report.balance}
        if split == task.train:
            train_hashes, trained = text_hashes, balance
        unmeasured = unmeasured_classes(task, split, report.path, balance, trained)
        splits.append(replace(report, problems=(*report.problems, *unmeasured)))
    try:
        if batches := unlabelled.open(source, task):
            rows = append_unlabelled(task, _no_rows(task), batches, unlabelled.limit)[0]
            overlaps = overlap_warnings(source, task, rows, unlabelled.split_of(task))
            splits.append(report_unlabelled(task, rows, overlaps, train_hashes, max_length, tokeniser))
    except UserError as error:
        problems.append(Problem(f"{task.name}/{UNLABELLED}", None, str(error)))
    return splits, problems


def _why_missing(task: Task, source: DataSource, splits: Sequence[str], message: str) -> str:
    """A message about missing splits, with the files that do not exist, or else with the source's hint."""
    errors = [source.missing(task, split) for split in splits]
    of_files = [error for split, error in zip(splits, errors, strict=True) if split in task.files]
    files = [f"  {line.strip()}" for error in of_files for line in error.lines()]
    hints = files or [f"  hint: {error.hint}" for error in errors[:1] if error.hint]
    return "\n".join([message, *hints])


def _missing_file(task: Task, source: DataSource, split: str) -> Problem:
    """The error for a split whose file, named in the task file, does not exist."""
    return Problem(f"{task.name}/{split}", None, str(source.missing(task, split)))


def _missing_splits(task: Task, source: DataSource, present: Sequence[str], suffices: bool) -> list[Problem]:
    """Errors for splits that training needs, and warnings for missing validation splits if one is present.

    Args:
        suffices: True if there are unlabelled rows in place of a training split (`unlabelled_rows_suffice`).
    """
    if task.train is None:
        return []
    validation = [split for split in task.validation if split in present]
    problems = []
    if task.train not in present and task.train in task.files:
        problems.append(_missing_file(task, source, task.train))
    elif task.train not in present:
        message = f"no training split {task.train!r} in {source.described}"
        message += ": a student can learn from the unlabelled rows alone, other models cannot" * suffices
        level: Level = "warning" if suffices else "error"
        problems.append(Problem(task.name, None, _why_missing(task, source, [task.train], message), level))
    if not validation and task.validation and set(task.validation) <= set(task.files):
        problems += [_missing_file(task, source, split) for split in task.validation]
    elif not validation:
        names = shorten(task.validation) or "none is named under [files]"
        message = f"no validation split in {source.described} ({names}); training needs one for evaluation"
        problems.append(Problem(task.name, None, _why_missing(task, source, task.validation, message)))
    missing = [split for split in task.validation if validation and split not in validation]
    return [
        *problems,
        *(Problem(f"{task.name}/{split}", None, "this split is missing", "warning") for split in missing),
    ]


def _no_rows(task: Task) -> Rows:
    """An empty `Rows` of a task, to which unlabelled rows are appended."""
    none = pa.array([], pa.string())
    answers = pa.array([], ANSWERS) if task.type.predicts_spans else None
    return Rows(task.name, UNLABELLED, none, (none,) * len(task.columns), np.zeros(0), answers=answers)
