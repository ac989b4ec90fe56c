"""A small sample of the interruptions that `make faults` tries at every change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trials import Outcome, Trials


@pytest.mark.parametrize(
    ("command", "points", "size"), [("augment mask", (5, 27), 3000), ("refine", (0.5, 0.97), None)]
)
def test_an_interrupted_command_resumes_to_identical_output(
    processes: Any,
    tmp_path: Path,
    tiny_encoder: Path,
    command: str,
    points: tuple[float, ...],
    size: int | None,
) -> None:
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "encoder").symlink_to(tiny_encoder)
    trials = Trials(command, processes, tmp_path)
    assert len(trials.changes) > 25 and not trials.odd
    for point in points:
        trials.killed(int(point if point > 1 else point * len(trials.changes)))
    if size is not None:
        trials.disk_full(size)
        trials.doubled(len(trials.changes) // 2)
    found = trials.outcome
    assert found.trials >= 2 and found == Outcome(found.trials)
