"""Predict the rows of a file, part by part. Nothing here needs torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tasks.checks.row_checks import is_blank
from tasks.common.errors import MtkdWarning, UserError, counted, did_you_mean_path, unknown
from tasks.common.progress import progress
from tasks.common.reading import not_regular
from tasks.data.file_readers import READERS, read_batches, suffix_of
from tasks.data.file_writers import open_writer
from tasks.data.loading import unlabelled_rows
from tasks.data.raw_table import RawTable
from tasks.data.rows import Rows
from tasks.data.text_lines import STANDARD
from tasks.task import Task

BLOCK = 8192
_ALL = 2**31 - 1  # rows
FORMATS = ("jsonl", "csv", "tsv", "parquet")


def predict_file(
    predict: Callable[[Rows], Iterable[dict[str, Any]]],
    task: Task,
    source: Path,
    out: Path,
    *,
    format: str | None = None,
    block: int = BLOCK,
    probabilities: bool = True,
) -> int:
    """Predict every row of a file; see `mtkd.predict`.

    The rows of a file are checked before the first is predicted. Those of standard input are checked as they
    arrive.

    Args:
        predict: gives the record of each row (`TaskType.records`).

    Returns:
        how many rows were predicted.

    Raises:
        UserError: as for `mtkd.predict`.
    """
    if block < 1:
        raise UserError(f"`block={block}` is not valid", expected="1 or more")
    read_format, write_format = _formats(source, out, format)
    size = _ALL if task.group else block  # a group is ranked as a whole

    def parts() -> Iterator[tuple[RawTable, Rows]]:
        for raw in read_batches(source, task.columns, size, read_format):
            yield raw, unlabelled_rows(task, raw)

    count, total = 0, None
    if source != STANDARD:
        total, blank = 0, 0
        for _, rows in parts():
            total, blank = total + len(rows), blank + _count_blank(rows)
        if blank:
            warnings.warn(
                f"{counted(blank, 'row')} of {source} without text: their predictions carry no information",
                MtkdWarning,
                stacklevel=2,
            )
    with (
        warnings.catch_warnings(),
        progress(f"predicting {task.name}", total) as advance,
        open_writer(out, write_format) as add,
    ):
        if total is not None:
            warnings.simplefilter("ignore", MtkdWarning)  # said when the rows were checked
        for raw, rows in parts():
            records = list(predict(rows))
            shown = records if probabilities else [{"prediction": record["prediction"]} for record in records]
            add(raw, shown)
            count += len(records)
            advance(len(records))
    return count


def _count_blank(rows: Rows) -> int:
    """How many rows have no text in any column."""
    is_empty = np.logical_and.reduce([is_blank(texts).to_numpy(zero_copy_only=False) for texts in rows.texts])
    return int(is_empty.sum())


def _formats(source: Path, out: Path, format: str | None) -> tuple[str, str]:
    """The formats of the input and of the output, as suffixes.

    Raises:
        UserError: there is no such file, both are the same file, or a format is unknown or unsuitable.
    """
    if format is not None and format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if source != STANDARD and not source.is_file():
        problem = not_regular(source)
        raise UserError(
            f"{source} {problem}" if problem else f"no such file: {source}{did_you_mean_path(source)}",
            expected="a file of rows, or - for standard input",
        )
    if source != STANDARD and out.exists() and out.samefile(source):
        raise UserError(
            f"`out={out}` is the file that `in={source}` reads: it would be overwritten",
            hint="name another file",
        )
    suffixes = [suffix_of(path) for path in (source, out)]
    if format is not None and all(suffixes):
        raise UserError(
            f"`format={format}` has no effect: the names of both files say their formats",
            hint="rename a file, or leave `format` out",
        )
    read_format = suffixes[0] or _format_without_suffix("in", source, format, ".jsonl")
    default = ".jsonl" if read_format == ".parquet" else read_format
    return read_format, suffixes[1] or _format_without_suffix("out", out, format, default)


def _format_without_suffix(name: str, path: Path, format: str | None, default: str) -> str:
    """The format of a file whose name does not say it; standard input and output have a default."""
    if path != STANDARD and format is None:
        raise UserError(
            f"`{name}={path}`: the name does not say the format",
            expected=f"a name that ends in {', '.join(READERS)}",
            hint="or name the format with `format`",
        )
    if path == STANDARD and format == "parquet":
        raise UserError(f"`{name}=-` cannot be parquet", expected="jsonl, csv or tsv")
    return f".{format}" if format else default
