"""What is wrong with raw rows, found once for `mtkd data check` and for every run that reads them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.errors import shorten
from tasks.raw_table import Level, RawTable
from tasks.task import Task

_MISSING = ("", "-1", "-1.0", "nan")
_EXAMPLES = 3  # rows that are named where many have the same problem


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one split.

    Attributes:
        place: "file:line" or "file, row number".
        column: the column it is in; None where a whole line or file is meant.
        level: an "error" stops training, a "warning" does not.
        kind: what the rows with the same problem have in common; the message itself where it is "".
        path: the file, so that the rows of one file can be counted together.
    """

    place: str
    column: str | None
    message: str
    level: Level = "error"
    kind: str = ""
    path: str = ""

    def __str__(self) -> str:
        column = f"column {self.column!r}: " if self.column else ""
        return f"{self.place}: {column}{self.message}"


def summarise(problems: Iterable[Problem]) -> list[tuple[Level, str]]:
    """Problems as lines to print, each with its level: one for each problem, or one for many of a kind.

    More than three problems of one kind in one column of one file become a single line with their number and
    the first three. Lines are in the order of their first problem.
    """
    groups: dict[tuple[str, ...], list[Problem]] = {}
    for problem in problems:
        kind = problem.kind or problem.message
        key = (problem.level, problem.path or problem.place, problem.column or "", kind)
        groups.setdefault(key, []).append(problem)
    lines: list[tuple[Level, str]] = []
    for (_, path, column, kind), found in groups.items():
        level = found[0].level
        if len(found) <= _EXAMPLES:
            lines += [(level, str(problem)) for problem in found]
            continue
        where = f"{path}: column {column!r}" if column else path
        lines.append((level, f"{where}: {kind}: {len(found):,} rows, the first of them:"))
        lines += [(level, f"  {problem}") for problem in found[:_EXAMPLES]]
    return lines


@dataclass(frozen=True)
class Labels:
    """Labels as numbers.

    Attributes:
        values: (n,) float64; a class id or a score (rounded to float32, as the hub holds scores);
            NaN = unlabelled or bad.
        bad: row number -> what is wrong with its label: the message, and the kind of problem.
    """

    values: np.ndarray
    bad: dict[int, tuple[str, str]]


def read_labels(task: Task, split: str, column: pa.ChunkedArray) -> Labels:
    """Understand a label column: ids, label names or scores, as numbers or as text.

    A label that is null, empty, NaN, or -1 where that is no legal value, means "unlabelled"; only test
    splits may have such rows. A label name comes before an id: where a name is itself a number, ids
    are not understood.
    """
    texts = _label_texts(column)
    values = _scores(task, texts) if task.kind == "regress" else _class_ids(task, texts)
    wrong = np.isnan(values)
    missing = pc.is_in(texts, value_set=pa.array([None, *_MISSING], type=pa.string())).to_numpy(
        zero_copy_only=False
    )
    if split in task.test:
        wrong &= ~missing
    said: dict[str | None, tuple[str, str]] = {}
    bad = {}
    for row in np.flatnonzero(wrong).tolist():
        value = texts[row].as_py()
        if value not in said:
            said[value] = _label_problem(task, value)
        bad[row] = said[value]
    return Labels(values, bad)


def _label_problem(task: Task, value: str | None) -> tuple[str, str]:
    """What to say of a label that is not the task's: the message, and the kind of problem."""
    given, kind = ("no label", "no label") if value in (None, "") else (f"label {value}", "unknown label")
    if task.kind == "regress":
        expected = f"{task.range[0]:g} to {task.range[1]:g}" if task.range else "a finite number"
    else:
        ids = {name: f"{number} ({name})" for number, name in enumerate(task.labels)}
        near = difflib.get_close_matches(value or "", ids, cutoff=0.5)
        expected = shorten([ids[name] for name in dict.fromkeys([*near, *ids])])
    return f"{given}; expected: {expected}", kind


def _label_texts(column: pa.ChunkedArray) -> pa.Array:
    """Every label as text: whole numbers without a point, others with every digit."""
    array = column.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    if pa.types.is_floating(array.type):
        numbers = array.to_pylist()
        texts = [None if v is None else str(int(v)) if v.is_integer() else repr(v) for v in numbers]
        return pa.array(texts, type=pa.string())
    return array.cast(pa.string())


def _class_ids(task: Task, texts: pa.Array) -> np.ndarray:
    """(n,) float64 class ids; NaN where the text is neither a label's name nor its id."""
    known = list(task.labels)
    if not any(name.lstrip("-").isdigit() for name in known):
        ids = range(len(task.labels))
        known += [str(number) for number in ids] + [f"{number}.0" for number in ids]
    found = pc.index_in(texts, value_set=pa.array(known, type=pa.string()))
    ids = found.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return ids % len(task.labels)


def _scores(task: Task, texts: pa.Array) -> np.ndarray:
    """(n,) float64 scores; NaN where the text is no finite number or outside the task's range."""
    unique = texts.dictionary_encode()
    numbers = np.array([_number(text) for text in unique.dictionary.to_pylist()] + [math.nan])
    values = numbers[pc.fill_null(unique.indices, -1).to_numpy()].astype(np.float32)
    if task.range is not None:
        low, high = np.float32(task.range[0]), np.float32(task.range[1])
        values = np.where((values >= low) & (values <= high), values, np.float32(np.nan))
    return values.astype(np.float64)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if abs(value) <= np.finfo(np.float32).max else math.nan


def find_problems(task: Task, split: str, sheet: RawTable) -> list[Problem]:
    """Every problem of one split: unreadable lines, null or empty texts, bad labels, bad answers.

    Args:
        sheet: rows that have the task's columns (`tasks.sources` sees to it).

    Returns:
        Line problems first, then row by row.
    """
    lines = [
        Problem(
            f"{sheet.path}:{bad.line}",
            None,
            bad.message,
            bad.level,
            kind=bad.message.partition(":")[0],
            path=sheet.path,
        )
        for bad in sheet.bad_lines
    ]
    if sheet.table.num_rows == 0:
        return [*lines, Problem(sheet.path, None, "the split is empty")]
    found = [*_text_problems(task, sheet), *_KINDS[task.kind](task, split, sheet)]
    found.sort(key=lambda item: item[0])
    return lines + [problem for _, problem in found]


def _text_problems(task: Task, sheet: RawTable) -> Iterator[tuple[int, Problem]]:
    for name in task.columns:
        texts = sheet.table[name].combine_chunks()
        for row in _where(pc.is_null(texts)):
            yield row, _row_problem(sheet, row, name, "null instead of text")
        for row in _where(pc.equal(pc.utf8_trim_whitespace(texts), "")):
            yield row, _row_problem(sheet, row, name, "empty text", level="warning")


def _row_problem(
    sheet: RawTable, row: int, column: str, message: str, kind: str = "", level: Level = "error"
) -> Problem:
    return Problem(sheet.place(row), column, message, level, kind, sheet.path)


def _where(mask: pa.Array) -> list[int]:
    """The row numbers at which a boolean column is true (null counts as false)."""
    return np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False)).tolist()


def _label_problems(task: Task, split: str, sheet: RawTable) -> Iterator[tuple[int, Problem]]:
    for row, (message, kind) in read_labels(task, split, sheet.table[task.label]).bad.items():
        yield row, _row_problem(sheet, row, task.label, message, kind)


def _rank_problems(task: Task, split: str, sheet: RawTable) -> Iterator[tuple[int, Problem]]:
    yield from _label_problems(task, split, sheet)
    assert task.group is not None
    for row in _where(pc.is_null(sheet.table[task.group].combine_chunks())):
        yield row, _row_problem(sheet, row, task.group, "null instead of a group")


def _span_problems(task: Task, split: str, sheet: RawTable) -> Iterator[tuple[int, Problem]]:
    """Answers must be cut from the context at `answer_start`; ids must differ; a context has text.

    Only test splits may lack answers.
    """
    contexts = sheet.table[task.columns[-1]].to_pylist()
    answers = sheet.table[task.label].to_pylist()
    for row, (context, answer) in enumerate(zip(contexts, answers, strict=True)):
        if context is None:
            continue
        if not context.strip():
            yield row, _row_problem(sheet, row, task.columns[-1], "empty context")
        if answer is None and split in task.test:
            continue
        message = _answer_problem(context, answer)
        if message:
            yield row, _row_problem(sheet, row, task.label, message, "invalid answer")
    if "id" not in sheet.table.column_names:
        return
    first: dict[str, int] = {}
    for row, name in enumerate(sheet.table["id"].to_pylist()):
        if first.setdefault(name, row) != row:
            message = f"id {name!r} is also at {sheet.place(first[name])}"
            yield row, _row_problem(sheet, row, "id", message, "repeated id")


def _answer_problem(context: str, answer: dict | None) -> str | None:
    if answer is None or answer["text"] is None or answer["answer_start"] is None:
        return "null instead of answers"
    texts, starts = answer["text"], answer["answer_start"]
    if len(texts) != len(starts):
        return f"{len(texts)} answer texts but {len(starts)} starts"
    for text, start in zip(texts, starts, strict=True):
        if text is not None and not text.strip():
            return f"blank answer {text!r}; a question without an answer has an empty list"
        if text is None or start is None or start < 0 or context[start : start + len(text)] != text:
            return f"answer {text!r} is not in the context at {start}"
    return None


_KINDS: dict[str, Callable[[Task, str, RawTable], Iterator[tuple[int, Problem]]]] = {
    "classify": _label_problems,
    "regress": _label_problems,
    "rank": _rank_problems,
    "span": _span_problems,
}
