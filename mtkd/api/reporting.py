"""`mtkd.report_html`, `report_knowledge` and `report_plot`: reports on finished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtkd.api.argument_types import Model
from mtkd.api.training_request import saved_path
from mtkd.output_files.remote_paths import remote_paths
from tasks.common.arguments import NonNegativeInt, checked


@checked
@remote_paths("runs", "reference", "teacher", "data", out="out")
def report_html(
    runs: Sequence[str | Path | Model],
    out: str | Path,
    *,
    reference: str | Path | Model | None = None,
    teacher: str | Path | None = None,
    teacher_labels: str | Mapping[str, str | Sequence[str]] | Sequence[str] | None = None,
    data: Any = None,
    examples: NonNegativeInt = 10,
    bench: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write a report of finished runs as one HTML file, which needs no other file and no network.

    It shows scores with 95% intervals, differences between models, size and time, learning curves,
    calibration and confusion, rows on which models disagree, and what is needed to repeat the runs.

    Args:
        runs: run directories, directories that contain some, such as the output of `compare`, or models.
        reference: the run that the others are compared with; by default the reference of the grid, or the
            first student that learned from labels alone.
        teacher: a directory or hub name of a fine-tuned transformers checkpoint, which is scored on the
            validation rows of the runs, and shown as the teacher; only for runs on one task.
        teacher_labels: the labels in the order of its outputs; see `mtkd.distill`.
        data: where the texts of the rows are read; by default where each run read them. Rows that differ from
            those of the run are not shown.
        examples: the maximum number of rows per task and pair of models; 0 = none.
        bench: also time the models on the CPU.
        overwrite: replace the file `out`.

    Returns:
        The file.

    Raises:
        UserError: there is no run, a run is unfinished or cannot be read, `reference` is not one of them, or
            `out` exists or has another suffix than .html or .htm.
    """
    from mtkd.reporting.page import write_report

    return write_report(
        [Path(saved_path("runs", run)) for run in runs],
        Path(out),
        reference=Path(saved_path("reference", reference)) if reference else None,
        teacher=str(teacher) if teacher else None,
        teacher_labels=teacher_labels,
        data=data,
        examples=examples,
        bench=bench,
        overwrite=overwrite,
    )


@checked
@remote_paths("runs")
def report_knowledge(runs: Sequence[str | Path | Model], out: str | Path) -> list[Path]:
    """Plot the scores of finished runs against the amount of hidden-state knowledge they kept.

    Args:
        runs: run directories, directories that contain some, such as the output of `compare`, or models.
        out: the directory to write.

    Returns:
        The files that were written.
    """
    from mtkd.reporting.knowledge_curve import plot_knowledge, read_points

    return plot_knowledge(read_points([Path(saved_path("runs", run)) for run in runs]), Path(out))


@checked
@remote_paths("comparisons", out="out")
def report_plot(comparisons: Sequence[str | Path], out: str | Path, *, overwrite: bool = False) -> Path:
    """Plot the trained rows of several finished comparisons together: score against time and size.

    Args:
        comparisons: the files compare.json that `compare` wrote, or the directories that hold them. They must
            have the same tasks. Rows with the same name get the titles of their comparisons added.
        out: the plot: a .png, .svg or .pdf file.
        overwrite: replace the file `out`.

    Returns:
        The file.

    Raises:
        UserError: a comparison cannot be read or is given twice, they have different tasks or were timed
            differently, fewer than two rows can be plotted, or `out` exists or has another suffix.
    """
    from mtkd.reporting.plot_comparisons import plot_comparisons

    return plot_comparisons([Path(file) for file in comparisons], Path(out), overwrite=overwrite)
