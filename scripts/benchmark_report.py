"""Printing measured speeds as medians and ratios."""

from __future__ import annotations

import statistics


def report(name: str, base: str, found: list[float], against: list[float], unit: str) -> None:
    ratios = [a / b for a, b in zip(found, against, strict=True)]
    print(
        f"  {name:42} {statistics.median(found):10.1f} {unit}; relative to {base!r}: "
        f"median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )
