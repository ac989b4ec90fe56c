"""The plot of a grid: the average score against inference time, size and training time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtkd.evaluation.baseline import CONSTANT
from mtkd.jobs.grid.compare_table import Row, Table

_LEGEND_COLUMNS, _MARKERS = 4, "os^Dv"


def plot_table(table: Table, path: Path) -> Path | None:
    """Plot the average score of every trained row against its costs, one panel for each cost.

    A grey line joins the Pareto front: the rows that no other equals in score at a lower or equal cost. A
    dotted line is the best constant prediction.

    Returns:
        The file, or None if fewer than two rows have a score and a measured inference time.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    rows = [row for row in table.rows if row.ms and not math.isnan(row.average(table.tasks))]
    if len(rows) < 2:
        return None
    batch = table.grid.bench.batches[0]
    scores = {row.name: 100 * row.average(table.tasks) for row in rows}
    height = 3.6 + 0.2 * math.ceil(len(rows) / _LEGEND_COLUMNS)
    figure = Figure(figsize=(12, height), layout="constrained")
    axes = figure.subplots(1, len(_COSTS), sharey=True)
    constant = [100 * row.average(table.tasks) for row in table.rows if row.name == CONSTANT]
    for axis, (label, cost) in zip(axes, _COSTS.items(), strict=True):
        costs = {row.name: cost(row, batch) for row in rows}
        for number, (name, score) in enumerate(scores.items()):
            marker = _MARKERS[number // 10 % len(_MARKERS)]  # colours repeat after 10
            axis.plot(costs[name], score, marker, ms=8, color=f"C{number % 10}", label=name)
        front = pareto_front(costs, scores)
        axis.plot([costs[name] for name in front], [scores[name] for name in front], color="0.7", zorder=0)
        for score in constant:
            axis.axhline(score, color="0.7", ls=":", lw=1)
        axis.set_xscale("log")
        wide_range = max(costs.values()) > 50 * min(costs.values())
        axis.xaxis.set_major_locator(LogLocator(subs=(1,) if wide_range else (1, 2, 5)))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.margins(x=0.1, y=0.1)
        axis.set_xlabel(label.format(batch=batch, tokens=table.grid.bench.seq_len))
    axes[0].set_ylabel("average score, points")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=_LEGEND_COLUMNS, frameon=False)
    figure.savefig(path, dpi=110)
    return path


def pareto_front(costs: Mapping[str, float], scores: Mapping[str, float]) -> Sequence[str]:
    """The names of which no other has at least the same score at a lower or equal cost, cheapest first."""
    front: list[str] = []
    for name in sorted(costs, key=lambda name: (costs[name], -scores[name])):
        if not front or scores[name] > scores[front[-1]]:
            front.append(name)
    return front


_COSTS: Mapping[str, Callable[[Row, int], Any]] = {
    "inference, ms for {batch} rows of {tokens} tokens": lambda row, batch: row.ms[batch],
    "million parameters": lambda row, batch: (row.parameters or 0) / 1e6,
    "training, minutes": lambda row, batch: statistics.fmean(row.seconds) / 60,
}
