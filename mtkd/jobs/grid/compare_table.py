"""The table of a grid: scores, costs, and differences from the reference."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mtkd.evaluation.baselines import CONSTANT
from mtkd.evaluation.differences import AVERAGE, Difference
from mtkd.evaluation.inference_bench import format_speed
from mtkd.evaluation.model_comparison import differences_frame
from mtkd.grids import TEACHER, Grid
from mtkd.jobs.grid.table_row import TableRow, mean_of, std_of
from tasks.common.text_format import aligned, markdown_cell

if TYPE_CHECKING:
    from pandas import DataFrame

METRICS_TITLE = "Every metric of every validation split"
_METRICS = {
    "accuracy": "acc",
    "f1": "F1",
    "matthews": "Matthews",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "exact_match": "EM",
}
_SPLITS = {"validation_matched": "-m", "validation_mismatched": "-mm"}


@dataclass(frozen=True, repr=False)
class Table:
    """A grid's results. Printing it shows the tables as text; `to_frame` converts them to a DataFrame.

    Attributes:
        grid: the grid.
        tasks: the scored tasks; tasks that were trained together are listed separately.
        rows: the teacher if the grid refines it or is given one, the cells in the order of the grid, and the
            baselines.
        commands: cell -> the commands of its runs.
        notes: further remarks for readers of the table.
        scored_runs: cell -> the directories of the runs whose scores it has, relative to the directory of the
            comparison.
    """

    grid: Grid
    tasks: list[str]
    rows: list[TableRow]
    commands: dict[str, list[str]]
    notes: list[str] = field(default_factory=list)
    scored_runs: dict[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        """The scores and costs, the differences from the reference, the notes, and the failed runs."""
        parts = [self.grid.title, *aligned([self.columns(), *self.lines()])]
        if lines := self.difference_lines():
            parts += ["", self.difference_title, *aligned([self.difference_columns(), *lines])]
        failed = [
            f"failed: {row.name}, {run}: {reason}" for row in self.rows for run, reason in row.failed.items()
        ]
        return "\n".join([*parts, "", *self.notes, *failed]).rstrip()

    __repr__ = __str__

    def to_frame(self) -> DataFrame:
        """The scores and costs as a pandas DataFrame, one row per row of the table, indexed by its name.

        Scores and standard deviations over seeds ("rte std") are fractions, not percent. "seconds" and
        "steps" are means over the runs. "ms at 64" is the inference time on the CPU at this batch size.
        """
        from pandas import DataFrame, Index

        records = []
        for row in self.rows:
            record: dict[str, Any] = {}
            for task in self.tasks:
                std = row.std(task)
                record |= {task: row.mean(task), f"{task} std": math.nan if std is None else std}
            record["average"] = row.average(self.tasks)
            record["share of teacher's gain"] = self.share_of_teacher_gain(row)
            record["parameters"] = math.nan if row.parameters is None else row.parameters
            record["steps"] = statistics.fmean(row.steps) if row.steps else math.nan
            record["seconds"] = statistics.fmean(row.seconds) if row.seconds else math.nan
            record |= {f"ms at {batch}": row.ms.get(batch, math.nan) for batch in self.grid.bench.batches}
            records.append(record)
        return DataFrame(records, index=Index([row.name for row in self.rows], name="model"))

    def differences_to_frame(self) -> DataFrame:
        """The differences from the reference as a pandas DataFrame; see `differences_frame`."""
        return differences_frame({row.name: row.differences for row in self.rows})

    def gain_notes(self) -> list[str]:
        """A note on the tasks on which the teacher gains nothing, if the table has shares of its gain."""
        rows = {row.name: row for row in self.rows}
        if not self._has_gain_shares:
            return []
        teacher, constant = rows[TEACHER], rows[CONSTANT]
        names = [task for task in self.tasks if not teacher.mean(task) > constant.mean(task)]
        if not names:
            return []
        return [
            f"The teacher is no better than the best constant prediction on {', '.join(names)}. The share of "
            "its gain is computed from averages over all tasks, so it hides this."
        ]

    def to_json(self) -> dict[str, Any]:
        """The table as plain JSON values; missing values are null."""
        rows = [
            {
                **row.to_json(),
                "mean": {task: row.mean(task) for task in self.tasks},
                "std": {task: row.std(task) for task in self.tasks},
                "average": row.average(self.tasks),
                "share_of_teacher_gain": self.share_of_teacher_gain(row),
            }
            for row in self.rows
        ]
        record = {
            "title": self.grid.title,
            "tasks": self.tasks,
            "reference": self.grid.reference_row,
            "bench": self.grid.bench.model_dump(),
            "rows": rows,
            "commands": self.commands,
            "scored_runs": self.scored_runs,
            "notes": self.notes,
        }
        return json.loads(json.dumps(record), parse_constant=lambda constant: None)

    @property
    def _has_gain_shares(self) -> bool:
        return any(not math.isnan(self.share_of_teacher_gain(row)) for row in self.rows)

    @property
    def _has_gpu_times(self) -> bool:
        return any(row.gpu_speed for row in self.rows)

    def columns(self) -> list[str]:
        """The column headings."""
        shares = ["share of teacher's gain"] if self._has_gain_shares else []
        devices = ["", *([" on GPU"] if self._has_gpu_times else [])]
        speeds = [f"speed{device} at {batch}" for device in devices for batch in self.grid.bench.batches]
        return ["", *self.tasks, "average", *shares, "parameters", "steps", "training", *speeds]

    def share_of_teacher_gain(self, row: TableRow) -> float:
        """A row's gain over the best constant prediction as a fraction of the teacher's.

        This is a ratio of averages over tasks: (row - constant) / (teacher - constant).
        NaN if the table has no teacher or no such baseline, or if the teacher gains nothing.
        """
        averages = {other.name: other.average(self.tasks) for other in self.rows}
        constant, teacher = averages.get(CONSTANT, math.nan), averages.get(TEACHER, math.nan)
        return (row.average(self.tasks) - constant) / (teacher - constant) if teacher > constant else math.nan

    def lines(self) -> list[list[str]]:
        """The rows as text; scores in percent, with the standard deviation over seeds."""
        batches = self.grid.bench.batches
        return [
            [
                row.name,
                *(_percent(row.mean(task), row.std(task)) for task in self.tasks),
                _percent(row.average(self.tasks), None),
                *([_share(self.share_of_teacher_gain(row))] if self._has_gain_shares else []),
                "-" if row.parameters is None else _count(row.parameters),
                f"{statistics.fmean(row.steps):,.0f}" if row.steps else "-",
                f"{statistics.fmean(row.seconds):.0f} s" if row.seconds else "-",
                *(_speed(row.speed, row.ms, batch) for batch in batches),
                *(_speed(row.gpu_speed, row.gpu_ms, batch) for batch in batches if self._has_gpu_times),
            ]
            for row in self.rows
        ]

    def difference_columns(self) -> list[str]:
        """The column headings of `difference_lines`."""
        return ["", *self.tasks, *([AVERAGE] if len(self.tasks) > 1 else [])]

    def difference_lines(self) -> list[list[str]]:
        """Each row's differences from the reference in points, with their 95% intervals and verdicts."""
        names = self.difference_columns()[1:]
        return [
            [row.name, *(_difference(row.differences.get(name)) for name in names)]
            for row in self.rows
            if row.differences
        ]

    def metric_columns(self) -> list[str]:
        """The column headings of `metric_lines`, such as "mrpc F1", "mrpc acc" and "mnli-m acc"."""
        return ["", *dict.fromkeys(name for row in self.rows for name in row.metrics)]

    def metric_lines(self) -> list[list[str]]:
        """Every metric of every validation split, in percent, with the standard deviation over seeds."""
        names = self.metric_columns()[1:]
        return [
            [row.name, *(_percent(mean_of(row.metrics, name), std_of(row.metrics, name)) for name in names)]
            for row in self.rows
        ]

    def markdown(self) -> str:
        """The tables as Markdown."""
        parts = [f"## {self.grid.title}", _markdown(self.columns(), self.lines())]
        if lines := self.difference_lines():
            parts += [self.difference_title, _markdown(self.difference_columns(), lines)]
        parts += [METRICS_TITLE, _markdown(self.metric_columns(), self.metric_lines())]
        parts += ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n\n".join(parts) + "\n"

    @property
    def difference_title(self) -> str:
        """The title of the table of differences."""
        return (
            f"Differences from {self.grid.reference_row!r} in points, with 95% intervals (paired bootstrap)"
        )


def metric_name(task: str, split: str, metric: str, splits: int) -> str:
    """The column heading of a metric, such as "mnli-m acc".

    Args:
        splits: how many validation splits the task has; only if there are several is the split named.
    """
    suffix = _SPLITS.get(split, f"/{split}") if splits > 1 else ""
    return f"{task}{suffix} {_METRICS.get(metric, metric)}"


def _count(number: int) -> str:
    """A number of parameters as text, such as 10.6M or 12k."""
    return f"{number / 1e6:.1f}M" if number >= 1e5 else f"{number / 1e3:.0f}k"


def _percent(value: float, std: float | None) -> str:
    if math.isnan(value):
        return "-"
    return f"{100 * value:.1f}" + ("" if std is None else f" ± {100 * std:.1f}")


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0%}"


def _speed(speed: Mapping[int, float], ms: Mapping[int, float], batch: int) -> str:
    return f"{format_speed(speed[batch])} ({ms[batch]:.1f} ms)" if batch in speed else "-"


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return "-"
    _, _, points, interval, verdict = difference.columns()
    return f"{points} ({interval}) {verdict}"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    body = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(map(markdown_cell, line))} |" for line in body)
