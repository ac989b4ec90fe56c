"""How long steps take that have never run: each does a few batches in a temporary directory."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtkd.jobs.grid_jobs import total_of_stages
from mtkd.pipelines.pipeline_file import move_steps, naming_step
from mtkd.pipelines.step import TRAINS, Step, execute, size_of
from mtkd.time_trial import trial_run
from tasks.progress import is_quiet, say, set_quiet

_TIMED = (*TRAINS, "evaluate")


@dataclass(frozen=True)
class TimeEstimate:
    """What a step takes: seconds, and the bytes of its output."""

    seconds: float
    bytes: int


def estimate_steps(steps: Sequence[Step], wanted: Collection[str]) -> dict[str, TimeEstimate]:
    """Estimate steps that train or evaluate, from a few batches of the rows that they would read.

    A step that reads the output of a step without an estimate has none either, unless that output exists.

    Args:
        steps: all steps, in an order in which they can run.
        wanted: the names of those to estimate.

    Raises:
        UserError: the error of a step.
    """
    found: dict[str, TimeEstimate] = {}
    with tempfile.TemporaryDirectory(prefix="mtkd-") as folder:
        moved = {step.name: step for step in move_steps(steps, folder)}
        for real in steps:
            step = moved[real.name]
            needed = [Path(moved[need].out) for need in step.needs]
            Path(step.out).parent.mkdir(parents=True, exist_ok=True)
            if step.name not in wanted and Path(real.out).exists():
                Path(step.out).symlink_to(Path(real.out).absolute())
            elif step.command in _TIMED and all(path.exists() for path in needed):
                say(f"timing a few batches of {step.name} ...")
                with naming_step(step.name):
                    found[step.name] = _try_out(step, moved)
    return found


def _try_out(step: Step, moved: Mapping[str, Step]) -> TimeEstimate:
    steps = total_of_stages(Path(moved[step.steps_of].out), "steps") if step.steps_of else None
    started, unseen, quiet = time.monotonic(), io.StringIO(), is_quiet()
    try:
        with trial_run() as trial, contextlib.redirect_stdout(unseen), contextlib.redirect_stderr(unseen):
            execute(step.command, [*step.words(steps), "--quiet"])
    finally:
        set_quiet(quiet)
    return TimeEstimate(time.monotonic() - started + trial.skipped, size_of(Path(step.out)) or 0)
