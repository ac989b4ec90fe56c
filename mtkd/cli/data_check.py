"""`mtkd data check`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

import mtkd
from mtkd.cli.flags import as_options
from mtkd.cli.option_values import NON_NEGATIVE_INT
from mtkd.cli.options import data_option, echo, report_options, show, table, unlabelled_option

if TYPE_CHECKING:
    from tasks.checks.data_report import DataReport
    from tasks.checks.split_report import SplitReport

_MAX_LABELS = 6  # of a split with more labels, only the most and the least frequent one are printed


@click.group()
def data() -> None:
    """Check data before training on it."""


@data.command("check")
@data_option
@click.option("--tasks", help="tasks, groups of tasks or task files  [default: all in the data]")
@unlabelled_option
@click.option(
    "--max-length",
    default=128,
    type=click.IntRange(min=8),
    help="the setting max_length of your models, which most recipes set to 128; warn about longer rows",
)
@click.option(
    "--teacher",
    metavar="DIR|NAME",
    help="count tokens as this run, transformers checkpoint or encoder does  [default: minilm]",
)
@click.option(
    "--list",
    "max_lines",
    default=50,
    type=NON_NEGATIVE_INT,
    help="print at most N problems (0 = all)",
)
@report_options
def check(
    data: Any,
    tasks: str | None,
    unlabelled: dict[str, Any],
    max_length: int,
    teacher: str | None,
    max_lines: int,
    json_file: str | None,
) -> None:
    """Report rows, label balance, lengths, duplicates, overlap with train, and every bad row.

    Warns about imbalanced labels, labels with almost no validation rows, training rows in other splits, rows
    that will be truncated to --max-length tokens, and text that the vocabulary of --teacher does not know.
    Training gives the same warnings about labels. The exit code is 2 if there are errors.
    """
    report = mtkd.check_data(data, tasks, unlabelled=unlabelled, max_length=max_length, teacher=teacher)
    show(report.to_json(), json_file, lambda: _draw(report, max_lines))
    sys.exit(2 if report.error_count else 0)


def _draw(report: DataReport, max_lines: int) -> None:
    """Print the table of splits, then at most `max_lines` lines of problems (0 = all)."""
    from tasks.common.errors import counted
    from tasks.data.row_checks import summarise

    rows = [
        (
            f"{s.task}/{s.split}",
            f"{s.rows:,}",
            _balance(s),
            " + ".join(f"{w.mean:.0f}/{w.p95:.0f}/{w.max}" for w in s.lengths),
            f"{s.duplicates:,}",
            "-" if s.overlap is None else f"{s.overlap:,}",
        )
        for s in report.splits
    ]
    if rows:
        headings = ("split", "rows", "labels", "words: mean/p95/max", "duplicate", "in train")
        table(headings, rows, f"data: {report.source}")
    for s in report.splits:
        if s.soft_labels:
            echo(f"{s.task}/{s.split}: the soft labels are read as {s.soft_labels}")
    lines = summarise(report.all_problems)
    for level, line in lines[: max_lines or None]:
        echo(f"{level}: {as_options(line)}")
    if max_lines and len(lines) > max_lines:
        echo(
            f"... and {counted(len(lines) - max_lines, 'more line')} (--list 0 prints all, --json every row)"
        )
    for hint in _hints({problem.kind for problem in report.all_problems}):
        echo(f"  hint: {hint}")
    warnings = len(report.all_problems) - report.error_count
    totals = counted(report.error_count, "error"), counted(warnings, "warning")
    is_summary = len(lines) != len(report.all_problems)
    summary = f", summarised in {counted(len(lines), 'line')}" if is_summary else ""
    echo(f"{', '.join(totals)} in {counted(len(report.splits), 'split')}{summary}")


def _hints(kinds: set[str]) -> list[str]:
    """How to correct problems of these kinds."""
    from tasks.task_types.labels import NOT_A_NUMBER, OUT_OF_RANGE, UNKNOWN_LABEL

    hints = {
        UNKNOWN_LABEL: "correct the labels in the file, or add them to `labels` in the task file",
        OUT_OF_RANGE: "correct the scores in the file, or change `range` in the task file",
        NOT_A_NUMBER: "correct the scores in the file; for labels that are texts, use "
        'kind = "classify" in the task file',
    }
    return [hint for kind, hint in hints.items() if kind in kinds]


def _balance(split: SplitReport) -> str:
    """The share of rows with each label, such as "positive 52%, negative 48%"; of many labels, two.

    Rows with an invalid label are a share of their own.
    """
    total = sum(count.rows for count in split.balance) + split.invalid
    counts = [count for count in split.balance if count.rows]
    shares = [f"{count.label} {count.rows / total:.0%}" for count in counts]
    invalid = [f"invalid {split.invalid / total:.0%}"] if split.invalid else []
    if len(counts) <= _MAX_LABELS:
        return ", ".join([*shares, *invalid])
    ranked = sorted(range(len(counts)), key=lambda n: counts[n].rows, reverse=True)
    return ", ".join([f"{len(counts)} labels: {shares[ranked[0]]} to {shares[ranked[-1]]}", *invalid])
