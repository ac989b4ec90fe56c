"""Charts of the report: ticks, labels that do not overlap, and number formats."""

from __future__ import annotations

from importlib.resources import files

import numpy as np
import pytest

from mtkd.evaluation.baselines import CONSTANT
from mtkd.reporting.runs import ROLES
from mtkd.reporting.svg import (
    TEXT_HEIGHT,
    Scale,
    css_class,
    fitted,
    move_apart,
    number,
    place_labels,
    width_of,
)


@pytest.mark.parametrize(
    ("low", "high", "log", "expected"),
    [
        (0, 1, False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (61.3, 79.2, False, [65, 70, 75]),
        (-4, 11, False, [0, 5, 10]),
        (3.2, 4000, True, [10, 30, 100, 300, 1000, 3000]),
        (8, 50, True, [10, 20, 30, 40, 50]),
    ],
)
def test_ticks_are_round_numbers_inside_the_range(
    low: float, high: float, log: bool, expected: list[float]
) -> None:
    scale = Scale(low, high, 100, 200, log)
    assert scale.ticks() == pytest.approx(expected)
    assert (scale(low), scale(high)) == pytest.approx((100, 200))
    middle = (low * high) ** 0.5 if log else (low + high) / 2
    assert scale(middle) == pytest.approx(150)


def test_a_scale_around_equal_values_is_not_empty() -> None:
    for value, log in ((0.0, False), (5.0, False), (5.0, True)):
        scale = Scale.around([value], 0, 10, log=log)
        assert scale.low < value < scale.high and scale.ticks()


def test_numbers_are_formatted_briefly() -> None:
    assert [number(value) for value in (0.1 + 0.2, 20, 1500, 2e6, 3e9, -0.5)] == [
        "0.3",
        "20",
        "1.5k",
        "2M",
        "3B",
        "-0.5",
    ]
    assert fitted("short", 200) == "short" and width_of(fitted("x" * 90, 100)) <= 100


def test_line_labels_do_not_overlap_and_stay_inside() -> None:
    found = move_apart([50, 51, 52, 180, 10, 185, 184], 0, 190)
    assert (np.diff(np.sort(found)) >= TEXT_HEIGHT + 1 - 1e-9).all() and min(found) >= 0 and max(found) <= 190
    assert np.argsort(found, kind="stable").tolist() == [4, 0, 1, 2, 3, 6, 5], "in the order of the lines"


def test_point_labels_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    points = [(float(x), float(y), f"model {n}") for n, (x, y) in enumerate(rng.uniform(60, 240, (7, 2)))]
    boxes = []
    for (_, _, name), (x, y, anchor) in zip(points, place_labels(points, 0, 360, 0, 300), strict=True):
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width_of(name)
        boxes.append((left, y - TEXT_HEIGHT + 2, left + width_of(name), y + 2))
    for number_, one in enumerate(boxes):
        assert one[0] >= 0 and one[2] <= 360
        for other in boxes[:number_]:
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


@pytest.mark.parametrize("role", [*ROLES, CONSTANT])
def test_each_role_has_a_colour(role: str) -> None:
    stylesheet = files("mtkd.reporting").joinpath("templates", "style.css").read_text(encoding="utf-8")
    assert f".{css_class(role)} {{ --c:" in stylesheet
