"""Estimate the time of steps that have never run, from a few batches of each in a temporary directory."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtkd.pipelines.pipeline_file import move_steps, naming_step
from mtkd.pipelines.step import TRAINS, Step, execute, size_of
from mtkd.time_trial import trial_run
from tasks.common.progress import is_quiet, say, set_quiet
from tasks.common.temporary import temporary_directory

_TIMED = (*TRAINS, "evaluate")


@dataclass(frozen=True)
class TimeEstimate:
    """The estimated cost of a step: its running time in seconds, and the size of its output in bytes."""

    seconds: float
    bytes: int


def estimate_steps(steps: Sequence[Step], requested: Collection[str]) -> dict[str, TimeEstimate]:
    """Estimate the steps that train or evaluate, from a few batches of the rows that they would read.

    A step that reads a missing output of a step without an estimate has no estimate either.

    Args:
        steps: all steps, in an order in which they can run.
        requested: the names of the steps to estimate.

    Returns:
        Step -> estimate.

    Raises:
        UserError: a step raises it.
    """
    estimates: dict[str, TimeEstimate] = {}
    with temporary_directory() as folder:
        moved = {step.name: step for step in move_steps(steps, str(folder))}
        for original_step in steps:
            step = moved[original_step.name]
            needed_paths = [Path(moved[needed_step].out) for needed_step in step.needs]
            Path(step.out).parent.mkdir(parents=True, exist_ok=True)
            if step.name not in requested and Path(original_step.out).exists():
                Path(step.out).symlink_to(Path(original_step.out).absolute())
            elif step.command in _TIMED and all(path.exists() for path in needed_paths):
                say(f"timing a few batches of {step.name} ...")
                with naming_step(step.name):
                    estimates[step.name] = _time_few_batches(step, moved)
    return estimates


def _time_few_batches(step: Step, moved: Mapping[str, Step]) -> TimeEstimate:
    """Run a few batches of a step without printing its output; `moved`: all steps by name."""
    words = step.argv_with_steps_of(Path(moved[step.steps_of].out)) if step.steps_of else step.argv()
    started = time.monotonic()
    output = io.StringIO()
    quiet = is_quiet()
    try:
        with trial_run() as trial, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            execute(step.command, [*words, "--quiet"])
    finally:
        set_quiet(quiet)
    return TimeEstimate(time.monotonic() - started + trial.skipped, size_of(Path(step.out)) or 0)
