"""Suggestions in error messages, and how they show names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.common.errors import MtkdWarning, did_you_mean, did_you_mean_path, unknown, warn_caller


@pytest.mark.parametrize("package", ["mtkd", "tasks", "augment"])
def test_a_warning_names_the_line_outside_of_mtkd(package: str) -> None:
    inside = {"__name__": f"{package}.module", "warn": warn_caller}
    exec("def work():\n    warn('careful')", inside)
    with pytest.warns(MtkdWarning, match="careful") as caught:
        inside["work"]()
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("requested", "suggested"),
    [
        ("ticket.toml", "tickets.toml"),
        ("other.csv", None),
        ("nope.toml", None),
        ("missing/tickets.toml", None),
    ],
)
def test_a_missing_path_suggests_a_similar_name_beside_it(
    requested: str, suggested: str | None, tmp_path: Path
) -> None:
    (tmp_path / "tickets.toml").touch()
    shown = f" (did you mean {str(tmp_path / suggested)!r}?)" if suggested else ""
    assert did_you_mean_path(tmp_path / requested) == shown


def test_names_with_spaces_or_commas_are_quoted() -> None:
    assert unknown("column", "label", [" label ", "a,b", "text"]).expected == "' label ', 'a,b', text"


def test_a_name_in_another_case_is_suggested() -> None:
    assert did_you_mean("RTE", ["ax", "rte", "RT"]) == " (did you mean 'rte'?)"
    assert did_you_mean("POSITIVE ", ["Positive", "Negative"]) == " (did you mean 'Positive'?)"
