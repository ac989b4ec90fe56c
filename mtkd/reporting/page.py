"""The page: one HTML file without scripts and without references to other files."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mtkd.evaluation.baselines import CONSTANT
from mtkd.evaluation.differences import AVERAGE, Difference
from mtkd.evaluation.inference_bench import BenchSettings, time_each_shape
from mtkd.jobs.grid.compare_plot import pareto_front
from mtkd.models.saved_model import read_saved
from mtkd.reporting import charts
from mtkd.reporting.checkpoints import ScoredCheckpoint, score_checkpoint
from mtkd.reporting.disagreements import Disagreements, TextReader, find_disagreements, pairs
from mtkd.reporting.models import Gathered, ReportedModel, gather
from mtkd.reporting.runs import STUDENT, Run
from mtkd.reporting.scores import Errors, Line, Scores, errors_of, score_models
from mtkd.teachers.teacher_names import LabelsSpec
from tasks.common.errors import UserError
from tasks.common.files import write_text
from tasks.data.sources import open_data

MAX_CLASSES = 8  # of a confusion matrix; tasks with more list their worst classes
MARKS = {"better": "▲ better", "worse": "▼ worse", "tied": "= tied"}
_BENCH_ROWS, _BENCH_TOKENS = 32, 128


def write_report(
    paths: Sequence[Path],
    out: Path,
    *,
    reference: Path | None = None,
    teacher: str | None = None,
    teacher_labels: LabelsSpec = None,
    data: Any = None,
    examples: int = 10,
    bench: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write a report of runs as one HTML file; for the arguments see `mtkd.report_html`.

    Raises:
        UserError: `out` exists already, or a run or the data cannot be read.
    """
    if out.suffix.lower() not in ("", ".html", ".htm"):
        raise UserError(f"`out={str(out)!r}` is not the name of a page", expected="a file that ends in .html")
    if out.exists() and not (overwrite and out.is_file()):
        problem = "is a directory" if out.is_dir() else "exists already"
        hint = "name a file" if out.is_dir() else "replace it with `overwrite=True`, or name another file"
        raise UserError(f"`out={str(out)!r}` {problem}", hint=hint)
    if teacher_labels and not teacher:
        raise UserError("`teacher_labels` has no effect without `teacher`", hint="also name the teacher")
    source = None if data is None else open_data(data)
    gathered = gather(paths, reference)
    checkpoint = score_checkpoint(gathered, teacher, data, teacher_labels) if teacher else None
    if bench:
        gathered = _timed(gathered)
    write_text(out, render(gathered, TextReader(source), examples, checkpoint), alone=True)
    return out


def _timed(gathered: Gathered) -> Gathered:
    """The models with the time that one of each shape takes."""
    models = {model.name: model.runs[0].path for model in gathered.models}
    tokens = min(_BENCH_TOKENS, *(read_saved(path).info.max_length for path in models.values()))
    results = time_each_shape(models, BenchSettings(tokens, _BENCH_ROWS))
    timed = [replace(model, ms=results[model.name].ms) for model in gathered.models]
    how_timed = f"{_BENCH_ROWS} rows of {tokens} tokens per batch on a CPU, measured for this report"
    return replace(gathered, models=timed, timed=how_timed)


@dataclass(frozen=True, eq=False)
class Page:
    """What the template shows.

    Attributes:
        headline: sentences on the best student.
        intervals, costs, curves: charts; the last is that of all runs.
        by_run: the learning curves of each run that is long enough.
        errors: task -> model -> where it is wrong, with its chart.
        disagreements: by pair of models, then by task.
    """

    gathered: Gathered
    scores: Scores
    headline: list[str]
    intervals: list[Markup]
    costs: list[Markup]
    curves: Markup | None
    by_run: list[tuple[Run, list[Markup]]]
    errors: dict[str, dict[str, tuple[Errors, Markup | None]]]
    disagreements: dict[tuple[str, str], list[Disagreements]]


def render(
    gathered: Gathered, reader: TextReader, examples: int, checkpoint: ScoredCheckpoint | None = None
) -> str:
    """The page as text; the same for the same runs."""
    scores = score_models(gathered, checkpoint)
    best = _best(gathered, scores)
    errors = {
        name: {
            line.name: (shown, _error_chart(line, shown))
            for line in scores.lines[:-1]
            if (shown := errors_of(task, line.predicted.get(name, {}))) is not None
        }
        for name, task in scores.tasks.items()
    }
    disagreements = {}
    for one, other in pairs(gathered, best) if examples else ():
        shared = [name for name in one.tasks if name in other.tasks]
        compared = [find_disagreements(one, other, name, examples, reader) for name in shared]
        disagreements[one.name, other.name] = [d for d in compared if d is not None]
    charts_of_tasks = [
        charts.intervals(
            name, [(line.name, line.role, line.scores[name]) for line in scores.lines if name in line.scores]
        )
        for name in scores.columns
    ]
    page = Page(
        gathered,
        scores,
        _headline(gathered, scores, best),
        charts_of_tasks,
        _cost_charts(gathered, scores),
        _common_curves(gathered.runs),
        [(run, run_charts) for run in gathered.runs if (run_charts := _curves(run))],
        {name: shown for name, shown in errors.items() if shown},
        {pair: shown for pair, shown in disagreements.items() if shown},
    )
    environment = Environment(
        loader=PackageLoader("mtkd.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "zip": zip,
        "points": lambda value: f"{100 * value:.1f}",
        "pretty": partial(json.dumps, indent=1),
    }
    environment.globals |= {"MARKS": MARKS, "MAX_CLASSES": MAX_CLASSES, "AVERAGE": AVERAGE}
    style = Markup(environment.get_template("style.css").render())
    return environment.get_template("report.html").render(page=page, style=style) + "\n"


def _best(gathered: Gathered, scores: Scores) -> ReportedModel | None:
    """The student with the best average; without students any model."""
    overall = scores.overall
    models = [model for model in gathered.models if model.name in overall]
    students = [model for model in models if model.role == STUDENT] or models
    return max(students, key=lambda model: overall[model.name], default=None)


def _headline(gathered: Gathered, scores: Scores, best: ReportedModel | None) -> list[str]:
    """Sentences on the best model: its score, and how it differs from each reference; [] without scores."""
    if best is None:
        return []
    column = scores.columns[0]
    scope = "on average" if column == AVERAGE else f"on {column}"
    sentences = [f"{best.name} scores {100 * scores.overall[best.name]:.1f} points {scope}."]
    for reference, gaps in scores.differences.items():
        if (gap := gaps.get(best.name, {}).get(column)) is not None:
            sentences.append(_in_words(gap, reference))
    return sentences


def _in_words(gap: Difference, reference: str) -> str:
    *_, interval, verdict = gap.columns()
    side = "above" if gap.difference >= 0 else "below"
    reference_name = f"the {reference}" if reference == CONSTANT else reference
    return (
        f"{abs(100 * gap.difference):.1f} points {side} {reference_name} (95% interval {interval}: {verdict})"
    )


def _error_chart(line: Line, errors: Errors) -> Markup | None:
    if errors.labels is not None:
        return charts.scatter(line.name, line.role, errors)
    return charts.calibration(line.name, line.role, errors.reliability) if errors.reliability else None


def _cost_charts(gathered: Gathered, scores: Scores) -> list[Markup]:
    """Overall scores against the size and the inference time, of models with all tasks."""
    overall = scores.overall
    models = [model for model in gathered.models if model.name in overall]
    sizes = {model.name: model.parameters["total"] / 1e6 for model in models}
    times = {model.name: model.ms for model in models if model.ms}
    cost_charts = []
    for label, cost in (("million parameters", sizes), ("ms per batch", times)):
        points = [(m.name, m.role, cost[m.name], overall[m.name]) for m in models if m.name in cost]
        if len(points) > 1:
            cost_charts.append(charts.costs(label, points, pareto_front(cost, overall)))
    return cost_charts


def _scores_over_steps(run: Run) -> dict[str, list[tuple[float, float]]]:
    """Task (or task/split, if it has several) -> (step, score in points)."""
    points_by_name: dict[str, list[tuple[float, float]]] = {}
    for record in run.log:
        for key, value in record.items():
            if key.startswith("score/"):
                points_by_name.setdefault(key.removeprefix("score/"), []).append(
                    (record["step"], 100 * value)
                )
    tasks = [name.split("/")[0] for name in points_by_name]
    names = [
        task if tasks.count(task) == 1 else name for task, name in zip(tasks, points_by_name, strict=True)
    ]
    return dict(zip(names, points_by_name.values(), strict=True))


def _curves(run: Run) -> list[Markup]:
    """The charts of a run's loss and validation scores over steps, if there are enough points."""
    losses = [(record["step"], record["loss"]) for record in run.log if "loss" in record]
    scores = _scores_over_steps(run)
    run_curves = []
    if len(losses) > 2:
        run_curves.append(charts.curves(f"Loss of {run.name}", "loss", {"loss": losses}, stages=run.stages))
    if any(len(points) > 1 for points in scores.values()):
        title = f"Validation scores of {run.name}"
        run_curves.append(charts.curves(title, "score, points", scores, stages=run.stages))
    return run_curves


def _mean_scores(run: Run) -> list[tuple[float, float]]:
    """(step, mean score over tasks in points) of each evaluation."""
    points = []
    for record in run.log:
        by_task: dict[str, list[float]] = {}
        for key, value in record.items():
            if key.startswith("score/"):
                by_task.setdefault(key.split("/")[1], []).append(100 * value)
        if by_task:
            points.append((record["step"], statistics.fmean(map(statistics.fmean, by_task.values()))))
    return points


def _common_curves(runs: Sequence[Run]) -> Markup | None:
    """The mean validation score over steps of all runs that were scored more than once."""
    lines = {run.name: points for run in runs if len(points := _mean_scores(run)) > 1}
    roles: Mapping[str, str] = {run.name: run.role for run in runs}
    if len(lines) < 2:
        return None
    return charts.curves("Mean validation score of all runs", "mean score, points", lines, roles=roles)
