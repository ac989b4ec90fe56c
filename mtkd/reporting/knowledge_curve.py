"""Plot scores against the amount of hidden-state knowledge (AHSK), as in Liu et al. 2021, figures 3 to 9."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtkd.knowledge_store.sizing import hidden_state_amount
from mtkd.losses.hidden_knowledge import HiddenKnowledge
from mtkd.models.saved_model import read_saved
from mtkd.run_record import RUN_FILE, read_run_record
from mtkd.setting_errors import validate
from mtkd.settings import DistillSettings
from tasks.common.errors import UserError, counted
from tasks.common.files import atomic_path, make_directory

_LOSS = "hidden_knowledge"


@dataclass(frozen=True)
class Point:
    """The score of one run on one task.

    Attributes:
        model: the student, named by its recipe and number of layers.
        depth, tokens, width: how much was kept; depth 0 = a run without hidden states.
        full: the number of layers (including the embeddings) and of tokens if everything is kept.
        top: L_top, a layer or a fraction of the teacher's layers; None = the teacher's last layer.
        token_selection, activation_selection: how tokens and activations were chosen.
        score: the score on the task, 0 to 1.
    """

    run: str
    task: str
    model: str
    depth: int
    tokens: int
    width: float
    full: tuple[int, int]
    top: int | float | None
    token_selection: str
    activation_selection: str
    score: float

    @property
    def ahsk(self) -> float:
        """The AHSK, the number of vectors kept per row (Liu et al. 2021)."""
        return hidden_state_amount(self.depth, self.tokens, self.width)

    @property
    def share(self) -> float:
        """The AHSK as a fraction of the full set."""
        return self.ahsk / (self.full[0] * self.full[1])

    @property
    def whole(self) -> tuple[bool, bool, bool]:
        """Whether the full depth, length and width are kept."""
        return self.depth == self.full[0], self.tokens == self.full[1], self.width == 1

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return asdict(self) | {"ahsk": self.ahsk, "share": self.share}


def read_points(roots: Iterable[Path]) -> list[Point]:
    """Collect the scores of all finished runs below some directories.

    Raises:
        UserError: no run has a recipe with a `hidden_knowledge` term.
    """
    directories = list(roots)
    files = sorted({file for directory in directories for file in directory.rglob(RUN_FILE)})
    points = [point for file in files for point in _points(file)]
    if not points:
        raise UserError(
            f"no finished run with hidden-state knowledge in {', '.join(map(str, directories))}",
            expected="directories with runs of hsk-tinybert-4 or hsk-rosita-6, such as those of a grid",
        )
    return points


def _points(file: Path) -> list[Point]:
    record = read_run_record(file, "status", "identity.settings")
    recorded = record["identity"]["settings"]
    if record["status"] != "finished" or not record.get("scores"):
        return []
    if not any(term["loss"] == _LOSS for term in recorded.get("terms", {}).values()):
        return []
    try:
        settings: DistillSettings = validate(DistillSettings, recorded)
    except UserError as error:
        hint = "train the run again with this version, or leave it out"
        problem = f"{file}, identity.settings: {error.problem}"
        raise UserError(problem, expected=error.expected, hint=hint) from error
    name, term = next((name, term) for name, term in settings.terms.items() if term.loss == _LOSS)
    assert isinstance(term, HiddenKnowledge.Settings)
    layers = read_saved(file.parent).config.spec.layers
    trained = {term for stage in settings.resolved_stages() for term in stage.terms}
    full = (layers + 1, settings.student.max_length)
    depth = (term.depth or full[0]) if name in trained else 0
    tokens, width = term.tokens or full[1], term.width
    model = f"{settings.name}, {counted(layers, 'layer')}"
    return [
        Point(
            str(file.parent),
            scores["task"],
            model,
            depth,
            tokens,
            width,
            full,
            term.top,
            term.token_selection,
            term.activation_selection,
            scores["primary"],
        )
        for scores in record["scores"].values()
    ]


def curve(points: Sequence[Point], along: str) -> list[tuple[float, float, float, int]]:
    """Group points by their value x: (x, mean score, best score, number of runs), in ascending order of x.

    Args:
        along: the field or property of Point that is x.
    """
    at: dict[float, list[float]] = {}
    for point in points:
        at.setdefault(float(getattr(point, along)), []).append(point.score)
    return [(x, statistics.fmean(s), max(s), len(s)) for x, s in sorted(at.items())]


def whole_points(points: Sequence[Point]) -> list[Point]:
    """The points of runs that keep all hidden states; if some use the uniform layer map, only those."""
    complete = [point for point in points if point.depth and all(point.whole)]
    return [point for point in complete if point.top is None] or complete


# figure -> field on the x axis, field in which the curves differ, dimension that varies, axis label
FIGURES = {
    "depth": ("depth", "top", 0, "layers kept"),
    "length": ("tokens", "token_selection", 1, "tokens kept"),
    "width": ("width", "activation_selection", 2, "fraction of the width kept"),
}


def plot_knowledge(points: Sequence[Point], out: Path) -> list[Path]:
    """Plot scores against the AHSK (`joint.png`) and against each dimension, with one panel per task.

    In the plot of one dimension, the other two are kept whole.

    Returns:
        the files written; there is none for a dimension that does not vary.

    Raises:
        UserError: `out` is a file.
    """
    make_directory(out)
    files = [_plot_amount(points, out / "joint.png")]
    for name, (along, differ, free, label) in FIGURES.items():
        shown = [p for p in points if p.depth and all(p.whole[i] for i in range(3) if i != free)]
        if len({getattr(p, along) for p in shown}) > 1:
            files.append(_plot_dimension(shown, along, differ, label, out / f"{name}.png"))
    return files


def _panels(points: Sequence[Point]) -> tuple[Any, dict[tuple[str, str], Any]]:
    from matplotlib.figure import Figure

    keys = list(dict.fromkeys((p.model, p.task) for p in points))
    columns = min(4, len(keys))
    rows = -(-len(keys) // columns)
    figure = Figure(figsize=(4 * columns, 3 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis in axes[len(keys) :]:
        axis.set_visible(False)
    for axis, (model, task) in zip(axes, keys, strict=False):
        axis.set_title(f"{task} ({model})", fontsize=9)
    return figure, dict(zip(keys, axes, strict=False))


def _plot_amount(points: Sequence[Point], path: Path) -> Path:
    figure, panels = _panels(points)
    for (model, task), axis in panels.items():
        panel = [p for p in points if (p.model, p.task) == (model, task)]
        without_states = [p for p in panel if not p.depth]
        uniform = whole_points(panel)
        plotted = [p for p in panel if p.depth and (p not in uniform or p.top is not None)] or uniform
        means = curve(plotted, "share")
        axis.scatter([p.share for p in plotted], [100 * p.score for p in plotted], s=8, color="0.7")
        axis.plot([x for x, *_ in means], [100 * y for _, y, *_ in means], "o-", ms=3, label="mean")
        axis.plot([x for x, *_ in means], [100 * best for _, _, best, _ in means], "^-", ms=3, label="best")
        if without_states:
            level = 100 * statistics.fmean(p.score for p in without_states)
            axis.axhline(level, color="0.4", ls="--", label="predictions alone")
        if uniform:
            level = 100 * statistics.fmean(p.score for p in uniform)
            axis.plot([1], [level], "r*", ms=9, label="all hidden states")
        if any(p.share for p in plotted):
            axis.set_xscale("log")
        axis.set_xlabel("AHSK as a fraction of the full set")
        axis.set_ylabel("score")
        axis.legend(fontsize=7)
    return _save(figure, path)


def _plot_dimension(points: Sequence[Point], along: str, differ: str, label: str, path: Path) -> Path:
    figure, panels = _panels(points)
    what = differ.replace("_", " ")
    for (model, task), axis in panels.items():
        panel = [p for p in points if (p.model, p.task) == (model, task)]
        for value in dict.fromkeys(getattr(p, differ) for p in panel):
            means = curve([p for p in panel if getattr(p, differ) == value], along)
            axis.plot(
                [x for x, *_ in means], [100 * y for _, y, *_ in means], "o-", ms=3, label=f"{what} {value}"
            )
        axis.set_xlabel(label)
        axis.set_ylabel("score")
        axis.legend(fontsize=7)
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    with atomic_path(path, alone=True) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return path
