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

from mtkd.evaluation.baseline import CONSTANT
from mtkd.evaluation.differences import AVERAGE, Difference
from mtkd.evaluation.inference_bench import BenchSettings, time_each_shape
from mtkd.jobs.compare_plot import pareto_front
from mtkd.models.saved_model import read_saved
from mtkd.reporting import charts
from mtkd.reporting.disagreements import Disagreements, TextReader, find_disagreements, pairs
from mtkd.reporting.models import Gathered, ReportedModel, gather
from mtkd.reporting.runs import STUDENT, Run
from mtkd.reporting.scores import Errors, Line, Scores, errors_of, score_models
from tasks.errors import UserError
from tasks.files import write_text

MOST_CLASSES = 8  # of a confusion matrix; tasks with more list their worst classes
MARKS = {"better": "▲ better", "worse": "▼ worse", "tied": "= tied"}
_BENCH_ROWS, _BENCH_TOKENS = 32, 128


def write_report(
    places: Sequence[Path],
    out: Path,
    *,
    reference: Path | None = None,
    data: Any = None,
    examples: int = 10,
    bench: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write a report of runs; see `mtkd.report_html`."""
    if out.exists() and not (overwrite and out.is_file()):
        what = "is a directory" if out.is_dir() else "exists already"
        hint = "name a file" if out.is_dir() else "replace it with `overwrite=True`, or name another file"
        raise UserError(f"`out={out}` {what}", hint=hint)
    given = gather(places, reference)
    if bench:
        given = _timed(given)
    write_text(out, render(given, TextReader(data), examples))
    return out


def _timed(given: Gathered) -> Gathered:
    """The models with the time that one of each shape takes."""
    models = {model.name: model.runs[0].path for model in given.models}
    tokens = min(_BENCH_TOKENS, *(read_saved(path).info.max_length for path in models.values()))
    results = time_each_shape(models, BenchSettings(tokens, _BENCH_ROWS))
    timed = [replace(model, ms=results[model.name].ms) for model in given.models]
    what = f"{_BENCH_ROWS} rows of {tokens} tokens per batch on a CPU, measured for this report"
    return replace(given, models=timed, timed=what)


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

    given: Gathered
    scores: Scores
    headline: list[str]
    intervals: list[Markup]
    costs: list[Markup]
    curves: Markup | None
    by_run: list[tuple[Run, list[Markup]]]
    errors: dict[str, dict[str, tuple[Errors, Markup | None]]]
    disagreements: dict[tuple[str, str], list[Disagreements]]


def render(given: Gathered, reader: TextReader, examples: int) -> str:
    """The page as text; the same for the same runs."""
    scores = score_models(given)
    best = _best(given, scores)
    errors = {
        name: {
            line.name: (found, _error_chart(line, found))
            for line in scores.lines[:-1]
            if (found := errors_of(task, line.predicted.get(name, {}))) is not None
        }
        for name, task in scores.tasks.items()
    }
    disagreements = {}
    for one, other in pairs(given, best) if examples else ():
        shared = [name for name in one.tasks if name in other.tasks]
        compared = [find_disagreements(one, other, name, examples, reader) for name in shared]
        disagreements[one.name, other.name] = [part for part in compared if part is not None]
    charts_of_tasks = [
        charts.intervals(
            name, [(line.name, line.role, line.scores[name]) for line in scores.lines if name in line.scores]
        )
        for name in scores.columns
    ]
    page = Page(
        given,
        scores,
        _headline(given, scores, best),
        charts_of_tasks,
        _cost_charts(given, scores),
        _common_curves(given.runs),
        [(run, made) for run in given.runs if (made := _curves(run))],
        {name: found for name, found in errors.items() if found},
        {pair: found for pair, found in disagreements.items() if found},
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
    environment.globals |= {"MARKS": MARKS, "MOST_CLASSES": MOST_CLASSES, "AVERAGE": AVERAGE}
    style = Markup(environment.get_template("style.css").render())
    return environment.get_template("report.html").render(page=page, style=style) + "\n"


def _best(given: Gathered, scores: Scores) -> ReportedModel | None:
    """The student with the best average; without students any model."""
    found = scores.overall
    models = [model for model in given.models if model.name in found]
    students = [model for model in models if model.role == STUDENT] or models
    return max(students, key=lambda model: found[model.name], default=None)


def _headline(given: Gathered, scores: Scores, best: ReportedModel | None) -> list[str]:
    if best is None:
        return []
    column = scores.columns[0]
    where = "on average" if column == AVERAGE else f"on {column}"
    said = [f"{best.name} scores {100 * scores.overall[best.name]:.1f} points {where}."]
    for reference, gaps in scores.differences.items():
        if (gap := gaps.get(best.name, {}).get(column)) is not None:
            said.append(_in_words(gap, reference))
    return said


def _in_words(gap: Difference, reference: str) -> str:
    *_, interval, verdict = gap.columns()
    side = "above" if gap.difference >= 0 else "below"
    what = f"the {reference}" if reference == CONSTANT else reference
    return f"{abs(100 * gap.difference):.1f} points {side} {what} (95% interval {interval}: {verdict})"


def _error_chart(line: Line, errors: Errors) -> Markup | None:
    if errors.labels is not None:
        return charts.scatter(line.name, line.role, errors)
    return charts.calibration(line.name, line.role, errors.reliability) if errors.reliability else None


def _cost_charts(given: Gathered, scores: Scores) -> list[Markup]:
    """Overall scores against the size and the inference time, of models with all tasks."""
    found = scores.overall
    models = [model for model in given.models if model.name in found]
    sizes = {model.name: model.parameters["total"] / 1e6 for model in models}
    times = {model.name: model.ms for model in models if model.ms}
    made = []
    for label, cost in (("million parameters", sizes), ("ms per batch", times)):
        points = [(m.name, m.role, cost[m.name], found[m.name]) for m in models if m.name in cost]
        if len(points) > 1:
            made.append(charts.costs(label, points, pareto_front(cost, found)))
    return made


def _scores_over_steps(run: Run) -> dict[str, list[tuple[float, float]]]:
    """Task (or task/split, if it has several) -> (step, score in points)."""
    found: dict[str, list[tuple[float, float]]] = {}
    for record in run.log:
        for key, value in record.items():
            if key.startswith("score/"):
                found.setdefault(key.removeprefix("score/"), []).append((record["step"], 100 * value))
    tasks = [name.split("/")[0] for name in found]
    names = [task if tasks.count(task) == 1 else name for task, name in zip(tasks, found, strict=True)]
    return dict(zip(names, found.values(), strict=True))


def _curves(run: Run) -> list[Markup]:
    losses = [(record["step"], record["loss"]) for record in run.log if "loss" in record]
    scores = _scores_over_steps(run)
    made = []
    if len(losses) > 2:
        made.append(charts.curves(f"Loss of {run.name}", "loss", {"loss": losses}, stages=run.stages))
    if any(len(points) > 1 for points in scores.values()):
        title = f"Validation scores of {run.name}"
        made.append(charts.curves(title, "score, points", scores, stages=run.stages))
    return made


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
