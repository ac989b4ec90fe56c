"""Sizes, durations and tables as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def size_text(count: int) -> str:
    """A number of bytes as text, such as "1.5 GB"."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def parse_size(text: str) -> int:
    """The number of bytes that a size such as 2GB, 500M or 1000000 means; ValueError if it is not a size."""
    number = text.strip().upper().removesuffix("B").removesuffix("I").strip()
    unit = number[-1:] if number[-1:] in "KMGT" else ""
    value = float(number.removesuffix(unit)) * _UNITS[unit]
    if not 1 <= value < 1e18:
        raise ValueError(f"{value} bytes are out of range")
    return int(value)


def duration_text(seconds: float) -> str:
    """A number of seconds as text, such as "12 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def score_text(score: float, metric: str = "score", digits: int = 1) -> str:
    """The value of a metric as it is printed: in percent, unless the metric is "loss"; NaN as "-"."""
    if math.isnan(score):
        return "-"
    return f"{score:.{digits + 2}f}" if metric == "loss" else f"{100 * score:.{digits}f}"


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table as text: the first and the last column are aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            [first.ljust(widths[0]), *(v.rjust(w) for v, w in zip(values, widths[1:-1], strict=True)), last]
        ).rstrip()
        for first, *values, last in lines
    ]


def markdown_cell(text: str) -> str:
    """Text for a cell of a Markdown table, in which `|` ends the cell."""
    return text.replace("|", "\\|")
