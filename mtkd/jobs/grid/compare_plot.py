"""Plot trained models: their average score against inference time, size and training time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtkd.evaluation.baselines import CONSTANT
from mtkd.jobs.grid.compare_table import Table
from mtkd.jobs.grid.table_row import TableRow
from tasks.common.files import atomic_path

_LEGEND_COLUMNS = 4
_LEGEND_CHARACTERS = 150
_MARKERS = "os^Dv"


@dataclass(frozen=True)
class PlottedModel:
    """A model, which is one point in each panel.

    Attributes:
        score: the average over tasks, in points.
        ms: the inference time of a batch in milliseconds.
        parameters: the number of weights.
        seconds: the mean training time in seconds; NaN if it is not known, as for a given teacher.
    """

    name: str
    score: float
    ms: float
    parameters: int
    seconds: float


def plot_table(table: Table, path: Path) -> Path | None:
    """Plot every timed row of a grid's table; for the arguments and the plot see `plot_models`.

    Returns:
        The file, or None if fewer than two rows have a score and a measured inference time.
    """
    bench = table.grid.bench
    scores = {row.name: 100 * row.average(table.tasks) for row in table.rows}
    models = [
        _model_of(row, scores[row.name], bench.batches[0])
        for row in table.rows
        if row.ms and not math.isnan(scores[row.name])
    ]
    if len(models) < 2:
        return None
    constants = [scores[row.name] for row in table.rows if row.name == CONSTANT]
    return plot_models(models, constants, f"{bench.batches[0]} rows of {bench.seq_len} tokens", path)


def plot_models(models: Sequence[PlottedModel], constants: Sequence[float], batch: str, path: Path) -> Path:
    """Plot the average score of models against their costs, one panel for each cost.

    A grey line connects the Pareto front: the models for which no other has at least the same score at a
    lower or equal cost.

    Args:
        constants: scores of the best constant prediction, in points; a dotted line for each.
        batch: the batch of the inference time, such as "64 rows of 128 tokens".
        path: the file to write; its suffix is the format.

    Returns:
        The file.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    scores = {model.name: model.score for model in models}
    columns = max(1, min(_LEGEND_COLUMNS, _LEGEND_CHARACTERS // (8 + max(map(len, scores)))))
    figure = Figure(figsize=(12, 3.6 + 0.2 * math.ceil(len(models) / columns)), layout="constrained")
    axes = figure.subplots(1, len(_COSTS), sharey=True)
    for axis, (label, cost) in zip(axes, _COSTS.items(), strict=True):
        all_costs = {model.name: cost(model) for model in models}
        for number, (name, score) in enumerate(scores.items()):
            marker = _MARKERS[number // 10 % len(_MARKERS)]  # colours repeat after 10
            axis.plot(all_costs[name], score, marker, ms=8, color=f"C{number % 10}", label=name)
        costs = {name: cost for name, cost in all_costs.items() if not math.isnan(cost)}
        front = pareto_front(costs, scores)
        axis.plot([costs[name] for name in front], [scores[name] for name in front], color="0.7", zorder=0)
        for score in constants:
            axis.axhline(score, color="0.7", ls=":", lw=1)
        axis.set_xscale("log")
        wide_range = max(costs.values(), default=0) > 50 * min(costs.values(), default=0)
        axis.xaxis.set_major_locator(LogLocator(subs=(1,) if wide_range else (1, 2, 5)))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.margins(x=0.1, y=0.1)
        axis.set_xlabel(label.format(batch=batch))
    axes[0].set_ylabel("average score, points")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
    with atomic_path(path, alone=True) as temporary:
        figure.savefig(temporary, dpi=110, format=path.suffix.removeprefix("."))
    return path


def pareto_front(costs: Mapping[str, float], scores: Mapping[str, float]) -> Sequence[str]:
    """The names for which no other has at least the same score at a lower or equal cost, cheapest first."""
    front: list[str] = []
    for name in sorted(costs, key=lambda name: (costs[name], -scores[name])):
        if not front or scores[name] > scores[front[-1]]:
            front.append(name)
    return front


def mean_seconds(seconds: Sequence[float]) -> float:
    """The mean training time; NaN for a row without training."""
    return statistics.fmean(seconds) if seconds else math.nan


def _model_of(row: TableRow, score: float, batch: int) -> PlottedModel:
    return PlottedModel(row.name, score, row.ms[batch], row.parameters or 0, mean_seconds(row.seconds))


_COSTS: Mapping[str, Callable[[PlottedModel], float]] = {
    "inference, ms for {batch}": lambda model: model.ms,
    "million parameters": lambda model: model.parameters / 1e6,
    "training, minutes": lambda model: model.seconds / 60,
}
