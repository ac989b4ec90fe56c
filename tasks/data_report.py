"""`mtkd data check`: a report on the splits of each task and every problem in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.data_quality import imbalance, leakage, token_problems
from tasks.errors import UserError, shorten
from tasks.overlap import count_overlap, overlap_warnings
from tasks.raw_table import Level, RawTable
from tasks.rows import ANSWERS, Rows, row_keys
from tasks.sources import DataSource
from tasks.task import UNLABELLED, Task
from tasks.unlabelled import UnlabelledRequest, append_unlabelled
from tasks.validation import Problem, find_problems

_STEP = 65_536  # rows processed at once
_WORD = r"[^\s\pZ\x0b\x1c-\x1f\x{85}]+"  # white space as Python defines it; RE2's \s matches less


@dataclass(frozen=True)
class Lengths:
    """Lengths of one text column in words, which are separated by white space."""

    column: str
    mean: float
    median: float
    p95: float
    max: int


@dataclass(frozen=True)
class Count:
    """Number of rows with one label, one interval of scores, or (`span`) with or without an answer."""

    label: str
    rows: int


@dataclass(frozen=True)
class SplitReport:
    """One split of one task.

    Attributes:
        path: the file it was read from.
        rows: number of readable rows.
        balance: rows per label; the remaining rows have invalid labels.
        lengths: one record per text column.
        duplicates: rows with the same texts and label as an earlier row.
        overlap: rows with the same texts as a training row; None for the training split itself.
        problems: every invalid line and row, and warnings about the split as a whole.
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
        train: pa.Array | None = None
        for split in task.splits:
            try:
                raw = source.raw_table(task, split)
            except UserError as error:
                if split in present or split in task.test:
                    level: Level = "error" if split in present else "warning"
                    problems.append(Problem(f"{task.name}/{split}", None, str(error), level))
                continue
            keys = row_keys([raw.table[name] for name in task.columns])
            splits.append(_report(task, split, raw, keys, train, max_length))
            if split == task.train:
                train = keys
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


def _missing_splits(task: Task, source: DataSource, present: Sequence[str]) -> list[Problem]:
    """Errors for splits that training needs, and warnings for missing validation splits if one is present."""
    if task.train is None:
        return []
    validation = [split for split in task.validation if split in present]
    found = []
    if task.train not in present:
        message = f"no training split {task.train!r} in {source.name!r}"
        found.append(Problem(task.name, None, _why(task, source, [task.train], message)))
    if not validation:
        names = shorten(task.validation) or "none is named under [files]"
        message = f"no validation split in {source.name!r} ({names}); training needs one for evaluation"
        found.append(Problem(task.name, None, _why(task, source, task.validation, message)))
    missing = [split for split in task.validation if validation and split not in validation]
    return [
        *found,
        *(Problem(f"{task.name}/{split}", None, "this split is missing", "warning") for split in missing),
    ]


def _unused(task: Task, raw: RawTable) -> list[Problem]:
    """A warning for each column that the task does not read, except row numbers and titles."""
    read = {*task.columns, task.label, task.group, "idx", "id", "index", "title"}
    return [
        Problem(raw.path, name, f"the task {task.name!r} does not read this column", "warning")
        for name in raw.table.column_names
        if name not in read
    ]


def _report(
    task: Task, split: str, raw: RawTable, keys: pa.Array, train: pa.Array | None, max_length: int
) -> SplitReport:
    labels_as_text = task.type.label_text(raw.table[task.label])
    with_label = keys
    if labels_as_text is not None:
        index = raw.table.schema.get_field_index(task.label)
        comparable = raw.table.set_column(index, task.label, labels_as_text)
        with_label = row_keys([comparable[name] for name in (*task.columns, task.label)])
    problems, labels = find_problems(task, split, raw)
    balance = tuple(Count(*found) for found in task.type.balance(task, labels)) if labels else ()
    seen = None if train is None else pc.is_in(keys, value_set=train)
    suspicious = [
        *imbalance(task, split, raw.path, {count.label: count.rows for count in balance}),
        *([] if seen is None else leakage(task, raw, seen)),
        *token_problems(task, raw, max_length),
    ]
    return SplitReport(
        task=task.name,
        split=split,
        path=raw.path,
        rows=raw.table.num_rows,
        balance=balance,
        lengths=tuple(_lengths(name, raw.table[name]) for name in task.columns),
        duplicates=len(with_label) - len(with_label.unique()),
        overlap=None if seen is None else pc.sum(seen).as_py() or 0,
        problems=(*problems, *_unused(task, raw), *suspicious),
    )


def _no_rows(task: Task) -> Rows:
    """Training rows of a task: none."""
    none = pa.array([], pa.string())
    answers = pa.array([], ANSWERS) if task.type.predicts_spans else None
    return Rows(task.name, UNLABELLED, none, (none,) * len(task.columns), np.zeros(0), answers=answers)


def _unlabelled_report(
    task: Task, rows: Rows, leaks: Sequence[str], train: pa.Array | None, max_length: int
) -> SplitReport:
    path = f"{task.name}/{UNLABELLED}"
    table = pa.table(dict(zip(task.columns, rows.texts, strict=True)))
    hashes = np.zeros(len(rows), np.int64)
    for start in range(0, len(rows), _STEP):
        keys = row_keys([column.slice(start, _STEP) for column in rows.texts]).to_pylist()
        hashes[start : start + len(keys)] = list(map(hash, keys))
    return SplitReport(
        task=task.name,
        split=UNLABELLED,
        path=path,
        rows=len(rows),
        balance=(Count("unlabelled", len(rows)),),
        lengths=tuple(_lengths(name, table[name]) for name in task.columns),
        duplicates=len(rows) - len(np.unique(hashes)),
        overlap=None if train is None else count_overlap(rows, train),
        problems=(
            *(Problem(path, None, leak, "warning") for leak in leaks),
            *token_problems(task, RawTable(table, path), max_length),
        ),
    )


def _lengths(name: str, column: pa.ChunkedArray) -> Lengths:
    parts = []
    for start in range(0, len(column), _STEP):
        texts = column.slice(start, _STEP).combine_chunks().drop_null().dictionary_encode()
        sizes = pc.count_substring_regex(texts.dictionary, _WORD)
        parts.append(sizes.take(texts.indices).to_numpy(zero_copy_only=False))
    words = np.concatenate(parts) if parts else np.zeros(0)
    if len(words) == 0:
        return Lengths(name, 0.0, 0.0, 0.0, 0)
    median, p95 = np.percentile(words, [50, 95])
    return Lengths(name, float(words.mean()), float(median), float(p95), int(words.max()))
