"""The charts of a report, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from mtkd.reporting import svg
from mtkd.reporting.scores import BINS, Errors, Interval, Reliability
from mtkd.reporting.svg import Scale

_WIDTH = 360.0
_DOTS = 800  # at most in a scatter plot


def intervals(task: str, rows: Sequence[tuple[str, str, Interval]]) -> Markup:
    """One line per model: its score, with the 95% interval.

    Args:
        rows: (name, role, score).
    """
    values = [
        100 * value for *_, cell in rows for value in (cell.low, cell.high, cell.score) if value is not None
    ]
    left = 128.0
    row_height = 21.0
    top = 8.0
    bottom = top + row_height * len(rows)
    x = Scale.around(values, left, _WIDTH - 44)
    parts = []
    for tick in x.ticks(4):
        parts += [svg.line(x(tick), top, x(tick), bottom, "grid")]
        parts += [svg.text(x(tick), bottom + 15, svg.number(tick), "tick", "middle")]
    descriptions = []
    for number, (name, role, cell) in enumerate(rows):
        y = top + row_height * (number + 0.5)
        score, css = 100 * cell.score, svg.css_class(role)
        label = f"{name}: {score:.1f}"
        if cell.low is not None and cell.high is not None:
            label += f" ({100 * cell.low:.1f} to {100 * cell.high:.1f})"
            parts += [svg.line(x(100 * cell.low), y, x(100 * cell.high), y, f"whisker {css}")]
        parts += [svg.marker(x(score), y, role, label), svg.text(0, y + 4, svg.fitted(name, left - 8))]
        parts += [svg.text(_WIDTH, y + 4, f"{score:.1f}", "value", "end")]
        descriptions.append(label)
    return svg.figure(_WIDTH, bottom + 20, f"Scores on {task}, in points", "; ".join(descriptions), parts)


def costs(label: str, points: Sequence[tuple[str, str, float, float]], front: Sequence[str]) -> Markup:
    """Average scores against a cost, on a logarithmic axis.

    Args:
        points: (name, role, cost, score from 0 to 1).
        front: the names that a line joins, from the cheapest on.
    """
    x = Scale.around([cost for *_, cost, _ in points], 34, _WIDTH - 8, log=True)
    y = Scale.around([100 * score for *_, score in points], 232, 24)
    positions = {name: (x(cost), y(100 * score)) for name, _, cost, score in points}
    parts = [
        svg.axes(x, y, label, "average score, points"),
        svg.polyline([positions[n] for n in front], "front"),
    ]
    label_points = [(*positions[name], svg.fitted(name, 150)) for name, *_ in points]
    labels = svg.place_labels(label_points, 34, _WIDTH, 14, 230)
    for (name, role, cost, score), (px, py, shown), at in zip(points, label_points, labels, strict=True):
        parts.append(svg.text(*at[:2], shown, "name", at[2]))
        parts.append(svg.marker(px, py, role, f"{name}: {100 * score:.1f} at {svg.number(cost)}"))
    description = "; ".join(
        f"{name}: {100 * score:.1f} at {svg.number(cost)}" for name, _, cost, score in points
    )
    return svg.figure(_WIDTH, 270, f"Average score against {label}", description, parts)


def curves(
    title: str,
    y_label: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    roles: Mapping[str, str] | None = None,
    stages: Sequence[tuple[int, str]] = (),
) -> Markup:
    """Lines over training steps, each with its name at the end.

    Args:
        lines: name -> (step, value).
        roles: name -> role, which determines the colour; None = each line has its own colour.
        stages: (first step, name) of each stage.
    """
    values = [value for points in lines.values() for _, value in points]
    steps = [step for points in lines.values() for step, _ in points]
    shows_names = len(lines) > 1
    name_width = min(132.0, max(svg.width_of(name) for name in lines) + 14) if shows_names else 4
    x = Scale(0, max(steps), 44, _WIDTH - 4 - name_width)
    log = min(values) > 0 and max(values) > 30 * min(values)
    y = Scale.around(values, max(186, 24 + 13 * len(lines)), 24, log=log)
    parts = [svg.axes(x, y, "steps", y_label + (" (logarithmic)" if log else ""), x_ticks=4)]
    for start, name in stages[1:]:
        parts += [
            svg.line(x(start), y.start, x(start), y.end, "boundary"),
            svg.text(x(start) + 3, 34, name, "tick"),
        ]
    label_heights = svg.move_apart([y(points[-1][1]) for points in lines.values()], y.end, y.start)
    counts: dict[str, int] = {}
    for (name, points), height in zip(lines.items(), label_heights, strict=True):
        group = svg.css_class(roles[name]) if roles else "series"
        counts[group] = number = counts.get(group, -1) + 1
        css = f"{group} dash{number % 4}" if roles else f"s{number % 8} dash{number // 8}"
        positions = [(x(step), y(value)) for step, value in points]
        parts.append(svg.polyline(positions, f"curve {css}"))
        parts.append(svg.dots(positions if len(positions) < 12 else positions[-1:], f"end {css}"))
        if shows_names:
            parts.append(svg.line(positions[-1][0] + 5, positions[-1][1], x.end + 5, height, "leader"))
            parts.append(svg.text(x.end + 7, height + 4, svg.fitted(name, name_width - 7), f"name {css}"))
    description = "; ".join(
        f"{name}: {points[-1][1]:.4g} at step {points[-1][0]:g}" for name, points in lines.items()
    )
    return svg.figure(_WIDTH, y.start + 36, title, f"Last values: {description}", parts)


def calibration(name: str, role: str, measured: Reliability) -> Markup:
    """How often predictions are right, against their probability; bars show how many rows there are."""
    x, y = Scale(0, 1, 30, 212), Scale(0, 1, 186, 18)
    parts = [svg.axes(x, y, "probability of the predicted class", "fraction right")]
    for confidence, _, share in measured.bins:
        left = min(int(confidence * BINS), BINS - 1) / BINS
        box = [
            (x(left) + 1, y(0)),
            (x(left) + 1, y(share)),
            (x(left + 0.1) - 1, y(share)),
            (x(left + 0.1) - 1, y(0)),
        ]
        parts.append(svg.polyline(box, "bar"))
    parts += [svg.line(x(0), y(0), x(1), y(1), "diagonal")]
    positions = [(x(confidence), y(right)) for confidence, right, _ in measured.bins]
    css = svg.css_class(role)
    parts += [svg.polyline(positions, f"curve thin {css}")]
    parts += [
        svg.disc(*position, 2 + 5 * share**0.5, css)
        for position, (*_, share) in zip(positions, measured.bins, strict=True)
    ]
    description = "; ".join(
        f"{right:.0%} right at {confidence:.2f}" for confidence, right, _ in measured.bins
    )
    return svg.figure(220, 222, f"Calibration of {name}", description, parts)


def scatter(name: str, role: str, errors: Errors) -> Markup:
    """Predicted against true scores, with the line on which they are equal."""
    assert errors.labels is not None and errors.predictions is not None, "of tasks with scores"
    values = np.concatenate([errors.labels, errors.predictions])
    x, y = Scale.around(values, 30, 212), Scale.around(values, 186, 18)
    step = -(-len(errors.labels) // _DOTS)
    pairs = zip(errors.labels[::step], errors.predictions[::step], strict=True)
    positions = [(x(float(label)), y(float(predicted))) for label, predicted in pairs]
    diagonal = svg.line(x(x.low), y(x.low), x(x.high), y(x.high), "diagonal")
    parts = [
        svg.axes(x, y, "label", "prediction"),
        diagonal,
        svg.dots(positions, f"cloud {svg.css_class(role)}"),
    ]
    description = (
        f"{len(positions)} of {len(errors.labels)} rows; the mean error is {_mean_error(errors):.3g}"
    )
    return svg.figure(220, 222, f"Predictions of {name} against labels", description, parts)


def _mean_error(errors: Errors) -> float:
    return float(np.abs(np.subtract(errors.predictions, errors.labels)).mean())  # type: ignore[arg-type]
