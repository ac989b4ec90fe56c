"""The report of `mtkd data check` on one split of one task."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.checks.data_quality import leakage, token_problems
from tasks.checks.label_balance import Balance, LabelCount
from tasks.checks.label_quality import GroupSizes, label_problems
from tasks.checks.row_hashes import RowHashes, hash_rows
from tasks.checks.split_statistics import Lengths, SplitStatistics
from tasks.common.errors import counted
from tasks.data.raw_table import RawTable
from tasks.data.row_checks import Problem, find_problems, is_blank
from tasks.data.rows import Rows
from tasks.task import UNLABELLED, Task

if TYPE_CHECKING:
    from tasks.tokens.tokeniser import Tokeniser


@dataclass(frozen=True)
class SplitReport:
    """One split of one task.

    Attributes:
        path: the file it was read from.
        rows: number of readable rows.
        balance: rows per label; the remaining rows have invalid labels. Rows that have only soft labels are
            counted under "soft labels".
        invalid: number of rows with an invalid label.
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
    balance: tuple[LabelCount, ...]
    lengths: tuple[Lengths, ...]
    duplicates: int
    overlap: int | None
    problems: tuple[Problem, ...]
    soft_labels: str | None = None
    invalid: int = 0

    @property
    def overlap_share(self) -> float | None:
        """`overlap` as a share of the rows, 0 to 1."""
        return None if self.overlap is None else self.overlap / max(1, self.rows)


def report_split(
    task: Task,
    split: str,
    tables: Iterator[RawTable],
    train_hashes: np.ndarray | None,
    max_length: int,
    reported_columns: set[str],
    tokeniser: Tokeniser | None = None,
) -> tuple[SplitReport, np.ndarray]:
    """Read a split and report on it; returns the report and the sorted hashes of the texts of its rows.

    Args:
        tables: the rows of the split, block by block.
        train_hashes: the sorted hashes of the training split, if it has been read.
        max_length: the number of tokens to which a model truncates a row; longer rows give a warning.
        reported_columns: columns that warnings about earlier splits named; the new ones are added to it.
        tokeniser: the teacher's; None = the default teacher's.

    Raises:
        UserError: the split cannot be read.
    """
    statistics = SplitStatistics(task, train_hashes)
    with_label = RowHashes()
    balance = Balance(task, split)
    groups = GroupSizes(task)
    problems: list[Problem] = []
    unread: list[Problem] = []
    labels_differ, soft_kind, invalid = False, None, 0
    for raw in tables:
        unread += _unread_warnings(task, raw, reported_columns)
        statistics.add(raw)
        new_problems, labels = find_problems(task, split, raw)  # also checks that the labels can be read
        problems += new_problems
        if (texts := task.type.label_text(raw.table[task.label])) is not None:
            labels_differ = True
            with_label.add(hash_rows([*(raw.table[name] for name in task.columns), texts]))
        if labels is not None:
            if task.group is not None:
                groups.add(raw.table[task.group].combine_chunks(), labels.values)
            balance.add(labels)
            invalid += len({problem.row for problem in labels.problems if problem.column == task.label})
            soft_kind = soft_kind or labels.soft_kind
    counts, distinct = balance.counts(), statistics.distinct()
    distinct_with_label = len(with_label.distinct()) if labels_differ else len(distinct)
    suspicious = [
        *label_problems(task, split, statistics.path, balance),
        *_contradictions(task, statistics, counts, distinct_with_label - len(distinct)),
        *groups.problems(statistics.path),
        *leakage(statistics),
        *token_problems(task, statistics, max_length, tokeniser),
    ]
    report = SplitReport(
        task=task.name,
        split=split,
        path=statistics.path,
        rows=statistics.rows,
        balance=counts,
        lengths=statistics.lengths(),
        duplicates=statistics.rows - distinct_with_label,
        overlap=None if train_hashes is None else statistics.seen,
        problems=(*problems, *unread, *suspicious),
        soft_labels=soft_kind,
        invalid=invalid,
    )
    return report, distinct


def _contradictions(
    task: Task, statistics: SplitStatistics, counts: Sequence[LabelCount], cases: int
) -> list[Problem]:
    """A warning for texts that occur with different labels, if every row has a valid label.

    Args:
        counts: the rows of each label.
        cases: how many times a text has another label than before, equal rows counted once.
    """
    labelled = sum(count.rows for count in counts if count.label in task.labels)
    if not cases or task.kind != "classify" or labelled < statistics.rows:
        return []
    message = f"the same texts occur with different labels ({counted(cases, 'case')})"
    return [Problem(statistics.path, task.label, message, "warning")]


def report_unlabelled(
    task: Task,
    rows: Rows,
    overlaps: Sequence[str],
    train_hashes: np.ndarray | None,
    max_length: int,
    tokeniser: Tokeniser | None = None,
) -> SplitReport:
    """The report on the unlabelled rows of a task.

    Args:
        overlaps: the warnings about rows that also occur in other splits.
        train_hashes: the sorted hashes of the training split, if it has been read.
        max_length: the number of tokens to which a model truncates a row; longer rows give a warning.
        tokeniser: the teacher's; None = the default teacher's.
    """
    path = f"{task.name}/{UNLABELLED}"
    statistics, blank = SplitStatistics(task, train_hashes), 0
    for part in rows.parts():
        statistics.add(RawTable(pa.table(dict(zip(task.columns, part.texts, strict=True))), path))
        blank += sum(pc.sum(is_blank(texts)).as_py() or 0 for texts in part.texts)
    return SplitReport(
        task=task.name,
        split=UNLABELLED,
        path=path,
        rows=len(rows),
        balance=(LabelCount("unlabelled", len(rows)),),
        lengths=statistics.lengths(),
        duplicates=len(rows) - len(statistics.distinct()),
        overlap=None if train_hashes is None else statistics.seen,
        problems=(
            *([Problem(path, None, counted(blank, "empty text"), "warning")] if blank else []),
            *(Problem(path, None, overlap, "warning") for overlap in overlaps),
            *token_problems(task, statistics, max_length, tokeniser),
        ),
    )


def _unread_warnings(task: Task, raw: RawTable, reported_columns: set[str]) -> list[Problem]:
    """A warning for each column that the task does not read, except ids and titles.

    Args:
        reported_columns: columns that earlier warnings named; the new ones are added to it.
    """
    unread = [name for name in unread_columns(task, raw) if name not in reported_columns]
    reported_columns.update(unread)
    return [
        Problem(raw.path, name, f"the task {task.name!r} does not read this column", "warning")
        for name in unread
    ]


def unread_columns(task: Task, raw: RawTable) -> list[str]:
    """The columns that the task does not read, except ids and titles."""
    read = {*task.columns, task.label, task.group, task.soft_labels, "idx", "id", "index", "title"}
    return [name for name in raw.table.column_names if name not in read and not _is_id(name, raw)]


def _is_id(name: str, raw: RawTable) -> bool:
    """True for a column that is named like an id and has a different value in every row."""
    column = raw.table[name]
    if not re.search(r"(^|[\W_])(id|idx|index|uid|uuid|guid|key)$|[a-z](Id|ID)$", name):
        return False
    return not pa.types.is_nested(column.type) and pc.count_distinct(column).as_py() == len(column)
