"""`mtkd data check`: a report on the splits of each task and every problem in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.checks.data_quality import GroupSizes, imbalance, labels_alike, leakage, token_problems
from tasks.checks.label_balance import Balance, Count
from tasks.checks.overlap import overlap_warnings
from tasks.checks.row_checks import Problem, find_problems, is_blank, summarise
from tasks.checks.row_hashes import RowHashes, hash_rows
from tasks.checks.split_statistics import Lengths, SplitStatistics
from tasks.common.errors import UserError, counted, shorten
from tasks.data.raw_table import Level, RawTable
from tasks.data.rows import ANSWERS, Rows
from tasks.data.sources import DataSource
from tasks.data.unlabelled import UnlabelledRequest, append_unlabelled
from tasks.task import UNLABELLED, Task


@dataclass(frozen=True)
class SplitReport:
    """One split of one task.

    Attributes:
        path: the file it was read from.
        rows: number of readable rows.
        balance: rows per label; the remaining rows have invalid labels. Rows that have soft labels alone are
            counted under "soft labels".
        lengths: one record per text column.
        duplicates: rows with the same texts and label as an earlier row.
        overlap: rows with the same texts as a training row; None for the training split itself.
        problems: every invalid line and row, and warnings about the split as a whole.
        soft_labels: what the column of soft labels was read as: probabilities, logits or scores; None if
            the split has none.
    """

    task: str
    split: str
    path: str
    rows: int
    balance: tuple[Count, ...]
    lengths: tuple[Lengths, ...]
    duplicates: int
    overlap: int | None
    problems: tuple[Problem, ...]
    soft_labels: str | None = None

    @property
    def overlap_share(self) -> float | None:
        """`overlap` as a share of the rows, 0 to 1."""
        return None if self.overlap is None else self.overlap / max(1, self.rows)


@dataclass(frozen=True)
class DataReport:
    """What `check` found.

    Attributes:
        splits: the splits that could be read, task by task.
        problems: splits that are missing or cannot be read at all.
    """

    source: str
    splits: tuple[SplitReport, ...]
    problems: tuple[Problem, ...]

    @property
    def all_problems(self) -> tuple[Problem, ...]:
        """The report's own problems, then those of its splits."""
        return (*self.problems, *(problem for split in self.splits for problem in split.problems))

    @property
    def errors(self) -> int:
        """How many problems are errors (warnings are not counted)."""
        return sum(problem.level == "error" for problem in self.all_problems)

    def __str__(self) -> str:
        """One line per split, and the problems."""
        splits = [
            f"{split.task}/{split.split}: {counted(split.rows, 'row')}, {split.duplicates:,} duplicate"
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
        return value | {"errors": self.errors}


def report_on(
    source: DataSource,
    tasks: Sequence[Task],
    max_length: int = 128,
    unlabelled: UnlabelledRequest = UnlabelledRequest(),  # noqa: B008 (it is frozen)
) -> DataReport:
    """Read every split of the tasks and report on it. Invalid data are reported, not raised.

    A task without any split, without its training split or without any validation split is an error, since
    training would refuse it. Any other missing split is a warning.

    Args:
        max_length: tokens that a model keeps per row; longer rows are counted.
        unlabelled: the rows without labels to report on; by default those that tasks and source name.
    """
    unlabelled.check(tasks)
    splits: list[SplitReport] = []
    problems: list[Problem] = []
    for task in tasks:
        problems += [Problem(task.name, None, message, "warning") for message in labels_alike(task)]
        present = source.splits(task)
        if not present:
            problems.append(
                Problem(
                    task.name,
                    None,
                    _why(task, source, task.splits, f"{source.name!r} has no data for this task"),
                )
            )
            continue
        problems += _missing_splits(task, source, present)
        train: np.ndarray | None = None
        unused: set[str] = set()
        for split in task.splits:
            try:
                report, distinct = _report(
                    task, split, source.batches(task, split), train, max_length, unused
                )
            except UserError as error:
                if split in present or (split in task.test and split in task.files):
                    level: Level = "error" if split in present else "warning"
                    problems.append(Problem(f"{task.name}/{split}", None, str(error), level))
                continue
            splits.append(report)
            if split == task.train:
                train = distinct
        try:
            if batches := unlabelled.open(source, task):
                rows = append_unlabelled(task, _no_rows(task), batches, unlabelled.limit)[0]
                leaks = overlap_warnings(source, task, rows, unlabelled.split_of(task))
                splits.append(_unlabelled_report(task, rows, leaks, train, max_length))
        except UserError as error:
            problems.append(Problem(f"{task.name}/{UNLABELLED}", None, str(error)))
    return DataReport(source.name, tuple(splits), tuple(problems))


def _why(task: Task, source: DataSource, splits: Sequence[str], message: str) -> str:
    """A message about missing splits, with the files that do not exist, or else with the source's hint."""
    errors = [source.missing(task, split) for split in splits]
    of_files = [error for split, error in zip(splits, errors, strict=True) if split in task.files]
    files = [f"  {line.strip()}" for error in of_files for line in error.lines()]
    hints = files or [f"  hint: {error.hint}" for error in errors[:1] if error.hint]
    return "\n".join([message, *hints])


def _missing_file(task: Task, source: DataSource, split: str) -> Problem:
    """The error for a split whose file, which the task file names, does not exist."""
    return Problem(f"{task.name}/{split}", None, str(source.missing(task, split)))


def _missing_splits(task: Task, source: DataSource, present: Sequence[str]) -> list[Problem]:
    """Errors for splits that training needs, and warnings for missing validation splits if one is present."""
    if task.train is None:
        return []
    validation = [split for split in task.validation if split in present]
    problems = []
    if task.train not in present and task.train in task.files:
        problems.append(_missing_file(task, source, task.train))
    elif task.train not in present:
        message = f"no training split {task.train!r} in {source.name!r}"
        problems.append(Problem(task.name, None, _why(task, source, [task.train], message)))
    if not validation and task.validation and set(task.validation) <= set(task.files):
        problems += [_missing_file(task, source, split) for split in task.validation]
    elif not validation:
        names = shorten(task.validation) or "none is named under [files]"
        message = f"no validation split in {source.name!r} ({names}); training needs one for evaluation"
        problems.append(Problem(task.name, None, _why(task, source, task.validation, message)))
    missing = [split for split in task.validation if validation and split not in validation]
    return [
        *problems,
        *(Problem(f"{task.name}/{split}", None, "this split is missing", "warning") for split in missing),
    ]


def _unused(task: Task, raw: RawTable, known: set[str]) -> list[Problem]:
    """A warning for each column that the task does not read, except ids and titles.

    Args:
        known: the columns of the task that a warning was about; the new ones are added.
    """
    read = {*task.columns, task.label, task.group, task.soft_labels, "idx", "id", "index", "title", *known}
    unused = [name for name in raw.table.column_names if name not in read and not _is_id(name, raw)]
    known.update(unused)
    return [
        Problem(raw.path, name, f"the task {task.name!r} does not read this column", "warning")
        for name in unused
    ]


def _is_id(name: str, raw: RawTable) -> bool:
    """True for a column that is called an id, and in which every row has another value."""
    column = raw.table[name]
    if not re.search(r"(^|[\W_])(id|idx|index|uid|uuid|guid|key)$|[a-z](Id|ID)$", name):
        return False
    return not pa.types.is_nested(column.type) and pc.count_distinct(column).as_py() == len(column)


def _report(
    task: Task,
    split: str,
    tables: Iterator[RawTable],
    train: np.ndarray | None,
    max_length: int,
    unused_columns: set[str],
) -> tuple[SplitReport, np.ndarray]:
    """The report on a split, and the sorted hashes of its texts.

    Args:
        train: those of the training split, if it has been read.
        unused_columns: columns that a warning about an earlier split named.
    """
    statistics, with_label, balance = SplitStatistics(task, train), RowHashes(), Balance(task, split)
    groups = GroupSizes(task)
    problems: list[Problem] = []
    unused: list[Problem] = []
    labels_differ, soft_kind = False, None
    for raw in tables:
        unused += _unused(task, raw, unused_columns)
        statistics.add(raw)
        if (texts := task.type.label_text(raw.table[task.label])) is not None:
            labels_differ = True
            with_label.add(hash_rows([*(raw.table[name] for name in task.columns), texts]))
        new_problems, labels = find_problems(task, split, raw)
        problems += new_problems
        groups.add(raw, labels)
        if labels is not None:
            balance.add(labels)
            soft_kind = soft_kind or labels.soft_kind
    counts, distinct = balance.counts(), statistics.distinct()
    suspicious = [
        *imbalance(task, split, statistics.path, {count.label: count.rows for count in counts}),
        *groups.problems(statistics.path),
        *leakage(statistics),
        *token_problems(task, statistics, max_length),
    ]
    report = SplitReport(
        task=task.name,
        split=split,
        path=statistics.path,
        rows=statistics.rows,
        balance=counts,
        lengths=statistics.lengths(),
        duplicates=statistics.rows - len(with_label.distinct() if labels_differ else distinct),
        overlap=None if train is None else statistics.seen,
        problems=(*problems, *unused, *suspicious),
        soft_labels=soft_kind,
    )
    return report, distinct


def _no_rows(task: Task) -> Rows:
    """Training rows of a task: none."""
    none = pa.array([], pa.string())
    answers = pa.array([], ANSWERS) if task.type.predicts_spans else None
    return Rows(task.name, UNLABELLED, none, (none,) * len(task.columns), np.zeros(0), answers=answers)


def _unlabelled_report(
    task: Task, rows: Rows, leaks: Sequence[str], train: np.ndarray | None, max_length: int
) -> SplitReport:
    path = f"{task.name}/{UNLABELLED}"
    statistics, blank = SplitStatistics(task, train), 0
    for part in rows.parts():
        statistics.add(RawTable(pa.table(dict(zip(task.columns, part.texts, strict=True))), path))
        blank += sum(pc.sum(is_blank(texts)).as_py() or 0 for texts in part.texts)
    return SplitReport(
        task=task.name,
        split=UNLABELLED,
        path=path,
        rows=len(rows),
        balance=(Count("unlabelled", len(rows)),),
        lengths=statistics.lengths(),
        duplicates=len(rows) - len(statistics.distinct()),
        overlap=None if train is None else statistics.seen,
        problems=(
            *([Problem(path, None, counted(blank, "empty text"), "warning")] if blank else []),
            *(Problem(path, None, leak, "warning") for leak in leaks),
            *token_problems(task, statistics, max_length),
        ),
    )
