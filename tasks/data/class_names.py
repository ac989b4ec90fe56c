"""Class names that a table of the `datasets` library carries for columns of class ids."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.common.errors import UserError, shorten
from tasks.data.raw_table import CLASS_NAMES, RawTable, is_list_column
from tasks.task import Task
from tasks.task_types.labels import label_positions

_PLACEHOLDER = re.compile(r"(label|class)?[ _-]?\d+", re.IGNORECASE)


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Column -> names of its classes in the order of their ids, as a `datasets.ClassLabel` names them.

    A `datasets.Dataset` has them in its Arrow schema, and so has a parquet file that was written from one.
    """
    try:
        features = json.loads((schema.metadata or {})[CLASS_NAMES])["info"]["features"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return {}
    found = {}
    for column, feature in features.items() if isinstance(features, Mapping) else ():
        names = _names(feature) or _names(feature.get("feature") if isinstance(feature, Mapping) else None)
        if names and column in schema.names:
            found[column] = names
    return found


def _names(feature: Any) -> list[str]:
    """The names of a ClassLabel; none for any other feature."""
    if not isinstance(feature, Mapping) or feature.get("_type") != "ClassLabel":
        return []
    names = feature.get("names")
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def with_label_names(task: Task, raw: RawTable) -> RawTable:
    """The rows with labels in place of the class ids of the label column, if its classes have names.

    The ids follow the order of the data set, which need not be that of the task's labels. Names are compared
    without case and punctuation. Ids without a name stay ids; so do all ids if the names only number the
    classes, such as "label 1".

    Raises:
        UserError: the classes have names, but none of them is a label of the task.
    """
    if not task.labels or not _holds_ids(raw.table[task.label].type):
        return raw
    names = class_names(raw.table.schema).get(task.label, [])
    positions = label_positions(names, task.labels)
    if all(position is None for position in positions):
        if all(map(_PLACEHOLDER.fullmatch, names)):
            return raw
        raise UserError(
            f"{raw.path}: the classes of column {task.label!r} are called {shorten(map(repr, names))}, "
            f"and none of them is a label of task {task.name!r}",
            expected=f"some of {shorten(map(repr, task.labels))}",
            hint="use the names of the classes as labels, or make the column one of plain numbers or texts",
        )
    labels = [
        name if position is None else task.labels[position]
        for name, position in zip(names, positions, strict=True)
    ]
    return replace(raw, table=_replaced(raw.table, task.label, labels))


def with_names(table: pa.Table) -> pa.Table:
    """The table with names in place of class ids in all columns whose classes have names."""
    for column, names in class_names(table.schema).items():
        if _holds_ids(table[column].type):
            table = _replaced(table, column, names)
    return table


def _holds_ids(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind.value_type if is_list_column(kind) else kind)


def _replaced(table: pa.Table, column: str, names: list[str]) -> pa.Table:
    """The table with the name of each class in place of its id; other numbers, such as -1, become texts."""
    values = table[column].combine_chunks()
    if is_list_column(values.type):
        rows = values.to_pylist()
        named_rows = [row and [_name(number, names) for number in row] for row in rows]
        texts = pa.array(named_rows, pa.list_(pa.string()))
    else:
        ids = values.cast(pa.int64())
        known = pc.and_(pc.greater_equal(ids, 0), pc.less(ids, len(names)))
        named = pa.array(names, pa.string()).take(pc.if_else(known, ids, None))
        texts = pc.coalesce(named, ids.cast(pa.string()))
    return table.set_column(table.schema.get_field_index(column), column, texts)


def _name(number: int | None, names: list[str]) -> str:
    return names[number] if number is not None and 0 <= number < len(names) else str(number)
