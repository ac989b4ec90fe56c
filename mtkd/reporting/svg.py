"""Parts of charts as SVG: scales, ticks, axes, marks and labels. Their colours are in the style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

TEXT_HEIGHT = 11  # pixels, the height of a label
_WIDE = 0.54  # the mean width of a character, in heights


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def around(cls, values: Iterable[float], start: float, end: float, *, log: bool = False) -> Scale:
        """A scale that shows all values, with a margin."""
        scaled = [math.log10(value) if log else value for value in values]
        low, high = min(scaled), max(scaled)
        margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
        low, high = low - margin, high + margin
        return cls(10**low, 10**high, start, end, log) if log else cls(low, high, start, end)

    def __call__(self, value: float) -> float:
        low, high, scaled = (
            (map(math.log10, (self.low, self.high, value))) if self.log else (self.low, self.high, value)
        )
        return self.start + (scaled - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """At most about `count` round values inside the scale."""
        if self.log and self.high > 8 * self.low:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for steps in ((1, 2, 5), (1, 3), (1,)):
                ticks = [s * 10.0**p for p in powers for s in steps if self.low <= s * 10.0**p <= self.high]
                if len(ticks) <= count + 1:
                    break
            return ticks
        raw = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(raw))
        step = power * next(s for s in (1, 2, 2.5, 5, 10) if s * power >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A tick's value, as short as possible: 0.5, 20, 3k, 1.5M."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{round(value, 10):g}"


def figure(width: float, height: float, title: str, description: str, parts: Iterable[Markup]) -> Markup:
    """A chart with its title, and its description for screen readers."""
    return Markup(
        '<svg viewBox="0 0 {:g} {:g}" role="img" style="max-width:{:g}px"><title>{}</title>'
        "<desc>{}</desc>{}</svg>"
    ).format(width, height, width * 1.25, title, description, Markup("").join(parts))


def text(x: float, y: float, value: str, css: str = "", anchor: str = "start") -> Markup:
    """A line of text whose baseline starts (or ends, or is centred) at a point."""
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>').format(
        x, y, anchor, css, value
    )


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> Markup:
    """A straight line."""
    return Markup('<path d="M{:.1f} {:.1f}L{:.1f} {:.1f}" class="{}"/>').format(x1, y1, x2, y2, css)


def polyline(points: Sequence[tuple[float, float]], css: str) -> Markup:
    """A line through points."""
    return Markup('<path d="M{}" class="{}"/>').format("L".join(f"{x:.1f} {y:.1f}" for x, y in points), css)


def dots(points: Iterable[tuple[float, float]], css: str) -> Markup:
    """Many equal dots, as one path of lines without length."""
    return Markup('<path d="{}" class="{}"/>').format("".join(f"M{x:.1f} {y:.1f}h0" for x, y in points), css)


def disc(x: float, y: float, radius: float, css: str) -> Markup:
    """A filled circle."""
    return Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{:.1f}" class="{}"/>').format(x, y, radius, css)


_MARKS = {
    "teacher": "M{0:.1f} {1:.1f}m-4-4h8v8h-8z",
    "student": "M{0:.1f} {1:.1f}m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
    "control": "M{0:.1f} {1:.1f}m0-5.5l5.5 5.5l-5.5 5.5l-5.5-5.5z",
    "fine-tuned": "M{0:.1f} {1:.1f}m0-5l5 9h-10z",
}


def marker(x: float, y: float, role: str, label: str) -> Markup:
    """The marker of a model, with a shape of its role and a label that is shown when the mouse is over it."""
    path = _MARKS.get(role, "M{0:.1f} {1:.1f}m-1-6h2v12h-2z").format(x, y)
    return Markup('<path d="{}" class="mark {}"><title>{}</title></path>').format(
        path, css_class(role), label
    )


def css_class(role: str) -> str:
    """The class of a role in the style sheet."""
    return role.replace(" ", "-")


def width_of(value: str) -> float:
    """The approximate width of a label in pixels."""
    return len(value) * TEXT_HEIGHT * _WIDE


def fitted(value: str, width: float) -> str:
    """A label, truncated if it is wider than `width` pixels."""
    max_characters = max(3, int(width / (TEXT_HEIGHT * _WIDE)))
    return value if len(value) <= max_characters else f"{value[: max_characters - 1]}…"


def axes(
    x: Scale, y: Scale, x_label: str = "", y_label: str = "", *, x_ticks: int = 5, y_ticks: int = 5
) -> Markup:
    """Grid lines, tick labels and axis labels of a chart whose y axis grows upwards."""
    parts = []
    for tick in y.ticks(y_ticks):
        parts += [line(x.start, y(tick), x.end, y(tick), "grid")]
        parts += [text(x.start - 5, y(tick) + 4, number(tick), "tick", "end")]
    for tick in x.ticks(x_ticks):
        parts += [line(x(tick), y.start, x(tick), y.start + 4, "axis")]
        parts += [text(x(tick), y.start + 16, number(tick), "tick", "middle")]
    parts += [line(x.start, y.start, x.end, y.start, "axis")]
    parts += [text((x.start + x.end) / 2, y.start + 32, x_label, "label", "middle")] if x_label else []
    parts += [text(2, y.end - 8, y_label, "label")] if y_label else []
    return Markup("").join(parts)


def move_apart(
    heights: Sequence[float], low: float, high: float, gap: float = TEXT_HEIGHT + 1
) -> list[float]:
    """Heights near those wanted, at least `gap` apart and inside the chart if there is room."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed: list[float] = []
    for index in order:
        placed.append(max(heights[index], placed[-1] + gap if placed else low))
    limit = high
    for position in reversed(range(len(placed))):
        placed[position] = min(placed[position], limit)
        limit = placed[position] - gap
    moved = [0.0] * len(heights)
    for index, height in zip(order, placed, strict=True):
        moved[index] = height
    return moved


_SIDES = [(9, 4, "start"), (-9, 4, "end"), (0, -9, "middle"), (0, 18, "middle")]
_SIDES += [(9, -8, "start"), (9, 16, "start"), (-9, -8, "end"), (-9, 16, "end")]


def place_labels(
    points: Sequence[tuple[float, float, str]], left: float, right: float, top: float, bottom: float
) -> list[tuple[float, float, str]]:
    """Where to write the names of points without covering others: (x, y of the baseline, text-anchor)."""
    occupied = [(px - 6, py - 6, px + 6, py + 6) for px, py, _ in points]
    labels = []
    for px, py, name in points:
        width = width_of(name)
        sides = [(px + aside, py + down, anchor) for aside, down, anchor in _SIDES]
        boxes = []
        for x, y, anchor in sides:
            begin = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
            boxes.append((begin, y - TEXT_HEIGHT + 2, begin + width, y + 2))
        costs = [
            sum(_overlap(box, other) for other in occupied)
            + 40
            * (
                max(0, left - box[0])
                + max(0, box[2] - right)
                + max(0, top - box[1])
                + max(0, box[3] - bottom)
            )
            for box in boxes
        ]
        best = costs.index(min(costs))
        occupied.append(boxes[best])
        labels.append(sides[best])
    return labels


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The area that two boxes (left, top, right, bottom) share."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return width * height if width > 0 and height > 0 else 0.0
