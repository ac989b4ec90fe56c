"""Printing measured speeds as medians and ratios."""

from __future__ import annotations

import statistics


def report(name: str, base: str, rates: list[float], base_rates: list[float], unit: str) -> None:
    ratios = [a / b for a, b in zip(rates, base_rates, strict=True)]
    print(
        f"  {name:42} {statistics.median(rates):10.1f} {unit}; relative to {base!r}: "
        f"median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )
