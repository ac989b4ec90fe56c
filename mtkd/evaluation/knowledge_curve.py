"""Score against the amount of hidden-state knowledge (AHSK), as Liu et al. 2021 plot it in figures 3 to 9."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mtkd.models.multitask import read_saved
from mtkd.store.sizing import amount
from mtkd.training.run_directory import RUN_FILE
from tasks.errors import UserError
from tasks.files import atomic_path, read_json

_LOSS = "hidden_knowledge"


@dataclass(frozen=True)
class Point:
    """One score of one run.

    Attributes:
        model: the student, by recipe and layers.
        depth, tokens, width: what was kept; depth 0 = predictions alone.
        full: layers (embeddings included) and tokens of the full set.
        top: L_top; None = the teacher's last layer.
        by, units: how tokens and activations were chosen.
        score: of the task, 0 to 1.
    """

    run: str
    task: str
    model: str
    depth: int
    tokens: int
    width: float
    full: tuple[int, int]
    top: int | None
    by: str
    units: str
    score: float

    @property
    def units_kept(self) -> float:
        """AHSK, in units of one vector."""
        return amount(self.depth, self.tokens, self.width)

    @property
    def share(self) -> float:
        """AHSK as a share of the full set."""
        return self.units_kept / (self.full[0] * self.full[1])

    @property
    def whole(self) -> tuple[bool, bool, bool]:
        """Whether all of depth, length and width is kept."""
        return self.depth == self.full[0], self.tokens == self.full[1], self.width == 1

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self) | {"units_kept": self.units_kept, "share": self.share}


def gather(places: Iterable[Path]) -> list[Point]:
    """The points of all finished runs in some directories, at any depth.

    Raises:
        UserError: there is none with a term on hidden-state knowledge, or with predictions alone.
    """
    listed = list(places)
    files = sorted({file for place in listed for file in place.rglob(RUN_FILE)})
    found = [point for file in files for point in _points(file)]
    if not found:
        raise UserError(
            f"no finished run with hidden-state knowledge in {', '.join(map(str, listed))}",
            expected="directories of runs of hsk-tinybert-4 or hsk-rosita-6, such as a grid's",
        )
    return found


def _points(file: Path) -> list[Point]:
    record = read_json(file)
    settings = record["identity"]["settings"]
    if record["status"] != "finished" or not record.get("scores"):
        return []
    terms = {name: term for name, term in settings.get("terms", {}).items() if term["loss"] == _LOSS}
    if not terms:
        return []
    (name, term), layers = next(iter(terms.items())), read_saved(file.parent).config.shape.layers
    trained = {t for stage in _stages(settings) for t in stage["terms"]} if settings["stages"] else terms
    full = (layers + 1, settings["student"]["max_length"])
    depth = (term["depth"] or full[0]) if name in trained and term["weight"] else 0
    tokens, width = term["tokens"] or full[1], term["width"]
    model = f"{settings['name']}, {layers} layers"
    return [
        Point(
            str(file.parent),
            scores["task"],
            model,
            depth,
            tokens,
            width,
            full,
            term["top"],
            term["by"],
            term["units"],
            scores["primary"],
        )
        for scores in record["scores"].values()
    ]


def _stages(settings: dict[str, Any]) -> list[dict[str, Any]]:
    wanted = settings["run_stages"] or list(settings["stages"])
    return [settings["stages"][name] for name in wanted]


def curve(points: Sequence[Point], along: str) -> list[tuple[float, float, float, int]]:
    """(x, mean score, best score, runs) by rising x, for the points that share it.

    Args:
        along: a field or property of Point.
    """
    at: dict[float, list[float]] = {}
    for point in points:
        at.setdefault(float(getattr(point, along)), []).append(point.score)
    return [(x, statistics.fmean(s), max(s), len(s)) for x, s in sorted(at.items())]


# figure -> what is on its axis, what its curves differ in, and which dimension may be less than whole.
FIGURES = {
    "depth": ("depth", "top", 0, "layers kept"),
    "length": ("tokens", "by", 1, "tokens kept"),
    "width": ("width", "units", 2, "share of the width kept"),
}


def draw(points: Sequence[Point], out: Path) -> list[Path]:
    """Draw score against AHSK (`joint.png`) and against each dimension with the others whole; a panel a task.

    Returns:
        the files written; a dimension along which nothing varies has none.
    """
    files = [_joint(points, out / "joint.png")]
    for name, (along, differ, free, label) in FIGURES.items():
        mine = [p for p in points if p.depth and all(p.whole[i] for i in range(3) if i != free)]
        if len({getattr(p, along) for p in mine}) > 1:
            files.append(_dimension(mine, along, differ, label, out / f"{name}.png"))
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


def _joint(points: Sequence[Point], path: Path) -> Path:
    figure, panels = _panels(points)
    for (model, task), axis in panels.items():
        mine = [p for p in points if (p.model, p.task) == (model, task)]
        kept, alone = [p for p in mine if p.depth], [p for p in mine if not p.depth]
        found = curve(kept, "share")
        axis.scatter([p.share for p in kept], [100 * p.score for p in kept], s=8, color="0.7")
        axis.plot([x for x, *_ in found], [100 * y for _, y, *_ in found], "o-", ms=3, label="mean")
        axis.plot([x for x, *_ in found], [100 * best for _, _, best, _ in found], "^-", ms=3, label="best")
        if alone:
            level = 100 * statistics.fmean(p.score for p in alone)
            axis.axhline(level, color="0.4", ls="--", label="predictions alone")
        whole = [p.score for p in kept if all(p.whole)]
        if whole:
            axis.plot([1], [100 * statistics.fmean(whole)], "r*", ms=9, label="all hidden states")
        axis.set_xscale("log")
        axis.set_xlabel("AHSK, share of the full set")
        axis.set_ylabel("score")
        axis.legend(fontsize=7)
    return _save(figure, path)


def _dimension(points: Sequence[Point], along: str, differ: str, label: str, path: Path) -> Path:
    figure, panels = _panels(points)
    for (model, task), axis in panels.items():
        mine = [p for p in points if (p.model, p.task) == (model, task)]
        for value in dict.fromkeys(getattr(p, differ) for p in mine):
            found = curve([p for p in mine if getattr(p, differ) == value], along)
            axis.plot(
                [x for x, *_ in found], [100 * y for _, y, *_ in found], "o-", ms=3, label=f"{differ} {value}"
            )
        axis.set_xlabel(label)
        axis.set_ylabel("score")
        axis.legend(fontsize=7)
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return path
