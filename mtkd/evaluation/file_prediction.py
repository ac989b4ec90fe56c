"""Predict the rows of a file, part by part. Nothing here needs torch."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.checks.truncated_rows import TruncatedRows
from tasks.common.errors import MtkdWarning, UserError, unknown, warn_caller
from tasks.common.progress import progress
from tasks.common.reading import require_file
from tasks.data.blank_texts import count_blank, warn_of_blank
from tasks.data.file_readers import READERS, read_batches, suffix_of
from tasks.data.file_writers import open_writer
from tasks.data.loading import unlabelled_rows_or_none
from tasks.data.predicted_columns import example_row, require_free
from tasks.data.raw_table import RawTable
from tasks.data.rows import Rows
from tasks.data.text_lines import STANDARD, display_name, input_path, output_path
from tasks.task import Task

Predict = Callable[[Rows, TruncatedRows], Iterable[dict[str, Any]]]
ROWS_PER_BLOCK = 8192
_ALL = 2**31 - 1  # rows
_FORMATS = ("jsonl", "csv", "tsv", "parquet")
_ONLY_READ = (".txt", ".json")


def predict_file(
    predict: Predict,
    task: Task,
    source: Path,
    out: Path,
    *,
    format: str | None = None,
    block: int = ROWS_PER_BLOCK,
    probabilities: bool = True,
    replace: bool = False,
) -> int:
    """Predict every row of a file; see `mtkd.predict`.

    The rows of a file are checked before the first is predicted. Those of standard input are checked as they
    arrive. If there are none, the output has only a header, and there is a warning.

    Args:
        predict: yields the record of each row (`TaskType.records`), and counts truncated rows.

    Returns:
        The number of predicted rows.

    Raises:
        UserError: as for `mtkd.predict`.
    """
    source, out = input_path(source), output_path(out)
    read_format, write_format = _formats(source, out, format)
    size = _ALL if task.group else block  # a group is ranked as a whole

    def parts() -> Iterator[tuple[RawTable, Rows | None]]:
        for raw in read_batches(source, task.columns, size, read_format):
            yield raw, unlabelled_rows_or_none(task, raw)

    count, total, truncated = 0, None, TruncatedRows()
    if source != STANDARD:
        total = _check_rows((rows for _, rows in parts()), source)
    with (
        warnings.catch_warnings(),
        progress(f"predicting {task.name}", total) as advance,
        open_writer(out, write_format) as add,
    ):
        if total is not None:
            warnings.simplefilter("ignore", MtkdWarning)  # shown when the rows were checked
        for raw, rows in parts():
            records = list(predict(example_row(task) if rows is None else rows, truncated))
            shown = records if probabilities else [{"prediction": record["prediction"]} for record in records]
            if not replace and shown:
                require_free(raw.table.column_names, shown[0], raw.path)
            add(raw if raw.table.column_names else dataclasses.replace(raw, table=_no_rows(task)), shown)
            count += raw.table.num_rows
            advance(raw.table.num_rows)
    if not count:
        warn_caller(f"{display_name(source)} has no rows: there is nothing to predict")
    truncated.warn(None if source == STANDARD else str(source))
    return count


def _check_rows(parts: Iterable[Rows | None], source: Path) -> int:
    """Read all rows of a file, and warn about empty texts; returns the number of rows."""
    total, blank = 0, 0
    for rows in parts:
        if rows is not None:
            total, blank = total + len(rows), blank + count_blank(rows)
    warn_of_blank(blank, str(source))
    return total


def _no_rows(task: Task) -> pa.Table:
    """The columns of a task without rows, for a file that does not even have a header."""
    return pa.table({name: pa.array([], pa.string()) for name in task.columns})


def _formats(source: Path, out: Path, format: str | None) -> tuple[str, str]:
    """The formats of the input and of the output, as suffixes.

    Raises:
        UserError: there is no such file, both are the same file, or a format is unknown or unsuitable.
    """
    if format is not None and format not in _FORMATS:
        raise unknown("format", format, _FORMATS)
    if source != STANDARD:
        require_file(source, "a file of rows, or - for standard input")
    if source != STANDARD and out.exists() and out.samefile(source):
        raise UserError(
            f"`out={str(out)!r}` is the file that `source={str(source)!r}` reads: it would be overwritten",
            hint="name another file",
        )
    suffixes = [suffix_of(path) for path in (source, out)]
    if suffixes[1] in _ONLY_READ:
        suffixes[1] = None
    if suffixes[0] == ".txt" and format is not None:
        suffixes[0] = None
    if format is not None and all(suffixes):
        raise UserError(
            f"`format={format!r}` has no effect: the names of both files say their formats",
            hint="rename a file, or leave `format` out",
        )
    read_format = suffixes[0] or _format_without_suffix("source", source, format, ".jsonl")
    default = ".jsonl" if read_format in (".parquet", *_ONLY_READ) else read_format
    return read_format, suffixes[1] or _format_without_suffix("out", out, format, default)


def _format_without_suffix(name: str, path: Path, format: str | None, default: str) -> str:
    """The format of a file whose name does not say it; standard input and output have a default."""
    if path != STANDARD and format is None:
        suffixes = [suffix for suffix in READERS if name == "source" or suffix not in _ONLY_READ]
        raise UserError(
            f"`{name}={str(path)!r}`: the name does not say the format",
            expected=f"a name that ends in {', '.join(suffixes)}",
            hint="or name the format with `format`",
        )
    if path == STANDARD and format == "parquet":
        raise UserError(f"`{name}='-'` cannot be parquet", expected="jsonl, csv or tsv")
    return f".{format}" if format else default
