"""Plots the models of several finished comparisons (`mtkd compare`) together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired

from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from mtkd.evaluation.baselines import CONSTANT
from mtkd.jobs.grid.compare_plot import PlottedModel, mean_seconds, plot_models
from mtkd.reporting.models import GRID_FILE, Cost
from tasks.common.errors import UserError, shorten
from tasks.common.records import read_record

_FORMATS = (".png", ".svg", ".pdf")


class _Row(TypedDict):
    name: str
    average: float | None
    ms: dict[str, Cost]
    parameters: int | None
    seconds: list[Cost]


class _Bench(TypedDict):
    seq_len: int


class _Table(TypedDict):
    title: str
    tasks: list[str]
    rows: list[_Row]
    bench: NotRequired[_Bench]


@dataclass(frozen=True)
class _Comparison:
    """The table of a compare.json."""

    file: Path
    table: _Table

    def models(self) -> Iterator[_Row]:
        """The rows that can be plotted: scored on all tasks, and timed."""
        for row in self.table["rows"]:
            if row["average"] is not None and row["ms"] and row["parameters"]:
                yield row


def plot_comparisons(paths: Sequence[Path], out: Path, *, overwrite: bool = False) -> Path:
    """Plot the timed rows of several comparisons as `mtkd compare` plots those of one.

    Args:
        paths: files compare.json, or the directories that hold them.
        out: the plot; a .png, .svg or .pdf file.

    Returns:
        The file.

    Raises:
        UserError: a comparison cannot be read or is given twice, they have different tasks or were timed
            differently, fewer than two rows can be plotted, or `out` exists or has another suffix.
    """
    if out.suffix not in _FORMATS:
        raise UserError(
            f"`out={str(out)!r}` has an unsupported format",
            expected=f"a name that ends in {', '.join(_FORMATS)}",
        )
    if out.exists() and not (overwrite and out.is_file()):
        problem = "is a directory" if out.is_dir() else "already exists"
        hint = "name a file" if out.is_dir() else "replace it with `overwrite=True`, or name another file"
        raise UserError(f"`out={str(out)!r}` {problem}", hint=hint)
    comparisons = [_read(path) for path in paths]
    _check_files(comparisons)
    _check_tasks(comparisons)
    batch, tokens = _common_batch(comparisons), _common_length(comparisons)
    names = _names(comparisons)
    models = [
        PlottedModel(
            names[comparison.file, row["name"]],
            100 * (row["average"] or 0.0),
            row["ms"][batch],
            row["parameters"] or 0,
            mean_seconds(row["seconds"]),
        )
        for comparison in comparisons
        for row in comparison.models()
    ]
    rows = [row for comparison in comparisons for row in comparison.table["rows"]]
    constants = {row["average"] for row in rows if row["name"] == CONSTANT}
    scores = sorted(100 * average for average in constants if average is not None)
    return plot_models(models, scores, f"{batch} rows{tokens}", out)


def _read(path: Path) -> _Comparison:
    file = path / GRID_FILE if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise UserError(
            f"{path} has no {GRID_FILE}",
            expected="the output of a finished `mtkd.compare`",
            hint="run mtkd compare again; finished runs are not repeated",
        )
    hint = f"name a {GRID_FILE} that mtkd compare has written, or its directory"
    return _Comparison(file, read_record(file, _Table, hint=hint))


def _check_files(comparisons: Sequence[_Comparison]) -> None:
    counts = Counter(comparison.file.resolve() for comparison in comparisons)
    for file, count in counts.items():
        if count > 1:
            raise UserError(f"{file} is given {count} times", expected="each comparison once")
    if sum(1 for comparison in comparisons for _ in comparison.models()) < 2:
        raise UserError(
            "there are fewer than two rows to plot",
            expected="two or more rows that were trained, scored on all tasks, and timed",
        )


def _check_tasks(comparisons: Sequence[_Comparison]) -> None:
    first = comparisons[0]
    for other in comparisons[1:]:
        if {*other.table["tasks"]} != {*first.table["tasks"]}:
            raise UserError(
                f"{other.file} compares scores on {', '.join(other.table['tasks'])}",
                expected=f"the same tasks as in {first.file}: {', '.join(first.table['tasks'])}",
                hint="plot these comparisons separately, or run their grids on the same tasks",
            )


def _common_batch(comparisons: Sequence[_Comparison]) -> str:
    """The first batch size at which all rows were timed."""
    timed = {comparison.file: [row["ms"] for row in comparison.models()] for comparison in comparisons}
    all_timed = [ms for rows in timed.values() for ms in rows]
    for batch in all_timed[0]:
        if all(batch in ms for ms in all_timed):
            return batch
    sizes = [f"{', '.join(rows[0])} in {file}" for file, rows in timed.items() if rows]
    raise UserError(
        f"the rows were timed at different batch sizes: {'; '.join(sizes)}",
        expected="a batch size that all comparisons have",
        hint="set `batches` in [bench] of the grids and run mtkd compare again; finished runs are not "
        "repeated",
    )


def _common_length(comparisons: Sequence[_Comparison]) -> str:
    """The length of the timed rows, in words; empty if a file from an earlier version does not say it."""
    known = {c.file: bench["seq_len"] for c in comparisons if (bench := c.table.get("bench"))}
    if len({*known.values()}) > 1:
        lengths = [f"{tokens} in {file}" for file, tokens in known.items()]
        raise UserError(
            f"the rows were timed at different sequence lengths: {'; '.join(lengths)}",
            expected="one length in all comparisons",
            hint="set `seq_len` in [bench] of the grids and run mtkd compare again; finished runs are not "
            "repeated",
        )
    return f" of {next(iter(known.values()))} tokens" if len(known) == len(comparisons) else ""


def _names(comparisons: Sequence[_Comparison]) -> dict[tuple[Path, str], str]:
    """(file, row) -> its name in the plot; a name that repeats is followed by the comparison's title.

    If titles are also the same, the directory of the comparison is added.
    """
    rows = [(c, row["name"]) for c in comparisons for row in c.models()]
    times = Counter(name for _, name in rows)
    titles = Counter(comparison.table["title"] for comparison in comparisons)
    names = {}
    for comparison, name in rows:
        title, folder = comparison.table["title"], comparison.file.resolve().parent.name
        source = title if titles[title] == 1 else f"{title}, {folder}"
        names[comparison.file, name] = name if times[name] == 1 else f"{name} ({source})"
    if len({*names.values()}) < len(names):
        files = shorten(str(comparison.file) for comparison in comparisons)
        raise UserError(
            f"comparisons of the same title are in directories of the same name: {files}",
            expected="another title or another directory for each",
            hint="rename a directory",
        )
    return names
