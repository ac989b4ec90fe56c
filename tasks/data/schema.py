"""Checking that a table has the columns that a task needs, with suitable types."""

from __future__ import annotations

import difflib
import json

import pyarrow as pa

from tasks.common.errors import UserError, brief, shorten
from tasks.data.raw_table import NOT_UTF8, UNREADABLE, RawTable, holds_text
from tasks.task import Task

# For each reason why a column could not be read: what was expected, and a hint.
_REMEDIES = {
    UNREADABLE: (
        "values of one type",
        "convert them, for example with `astype(str)` of pandas or `tolist()` of torch",
    ),
    NOT_UTF8: (
        "text without lone surrogates, which UTF-8 cannot hold",
        "replace them: `text.encode(errors='replace').decode()`",
    ),
}


def fit_columns(
    task: Task, split: str, raw: RawTable, fix: str = "rename one, or change the task"
) -> pa.Table:
    """Return the table with text columns as strings, and with a label column if rows may lack labels.

    Args:
        fix: what to do if a text column is missing, for the hint.

    Raises:
        UserError: a column is missing (the most similar name is suggested) or has an unsuitable type.
    """
    table = raw.table
    present = table.column_names
    if table.num_columns == 0:
        return pa.table({name: pa.array([], pa.string()) for name in (*task.columns, task.label)})
    if task.label not in table.column_names and task.may_be_unlabelled(split):
        table = table.append_column(task.label, pa.nulls(table.num_rows, task.type.label_type))
    soft = [task.soft_labels] if task.soft_labels and task.has_soft_labels(split) else []
    for name in (*task.columns, task.label, *([task.group] if task.group else []), *soft):
        if name not in table.column_names:
            near = difflib.get_close_matches(name, present, n=1, cutoff=0.5)
            nearest = f" (did you mean {near[0]!r}?)" if near else ""
            change = fix if name in task.columns else "rename one"
            raise UserError(
                f"{raw.path} has no column {name!r}, which task {task.name!r} needs{nearest}",
                hint=f"its columns are {shorten(present, name)}; {change}",
            )
        metadata = table.schema.field(name).metadata or {}
        for key, (expected, hint) in _REMEDIES.items():
            if key in metadata:
                problem = f"{raw.path}: the column {name!r} {metadata[key].decode()}"
                raise UserError(problem, expected=expected, hint=hint)
    table = _with_plain_truth_values(table, task.label)
    _check_types(task, table, raw)
    for name in task.columns:
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, _as_strings(table[name], name, raw.path))
    return table


def _with_plain_truth_values(table: pa.Table, name: str) -> pa.Table:
    """The table with a plain column in place of dictionary-encoded (categorical) truth values."""
    kind = table.schema.field(name).type
    if not (pa.types.is_dictionary(kind) and pa.types.is_boolean(kind.value_type)):
        return table
    return table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.bool_()))


def _check_types(task: Task, table: pa.Table, raw: RawTable) -> None:
    """Check that the label and group columns have suitable types."""
    path = raw.path
    expected = task.type.check_label_column(task, table.schema.field(task.label).type)
    if expected and table.num_rows:
        if (row := _wrong_label(task, table[task.label])) is not None:
            shown = brief(table[task.label][row].as_py())
            raise UserError(f"{raw.location(row)}: column {task.label!r} holds {shown}", expected=expected)
        kind = table.schema.field(task.label).type
        raise UserError(f"{path}: column {task.label!r} holds {kind}", expected=expected)
    if task.group is not None:
        kind = table.schema.field(task.group).type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise UserError(
                f"{path}: column {task.group!r} holds {kind}", expected="one number or text per row"
            )


def _wrong_label(task: Task, column: pa.ChunkedArray) -> int | None:
    """The index of the first label of a wrong type in a column where others have the right type, if any.

    The reader has turned a column of mixed types into JSON texts.
    """
    if column.type != pa.string():
        return None
    has_type = [_has_label_type(task, text) for text in column.to_pylist()]
    return has_type.index(False) if any(has_type) and not all(has_type) else None


def _has_label_type(task: Task, text: str | None) -> bool:
    """True if a label in JSON has a type that the task can read."""
    if text is None:
        return True
    try:
        kind = pa.array([json.loads(text)]).type
    except (ValueError, RecursionError, OverflowError, pa.ArrowException):
        return False
    return task.type.check_label_column(task, kind) is None


def _as_strings(column: pa.ChunkedArray, name: str, path: str) -> pa.ChunkedArray:
    """Convert a text column to strings; UserError if it holds other values or is not UTF-8."""
    if not holds_text(column.type):
        raise UserError(
            f"{path}: column {name!r} holds {column.type}, not text",
            hint="convert it to text, for example with `astype(str)` of pandas, or name another column",
        )
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UserError(f"{path}: column {name!r} is not UTF-8: {error}") from error
    return column.cast(pa.string())
