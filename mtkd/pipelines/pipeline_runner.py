"""Find the steps of a pipeline that are not finished, say why, run them, and record them."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mtkd.pipelines.estimate import estimate_steps
from mtkd.pipelines.inputs import Digests, at_current_paths, check_outputs, check_step_output, input_files
from mtkd.pipelines.pipeline_file import naming_step
from mtkd.pipelines.step import Step, check_step, execute, find_command, size_of
from mtkd.pipelines.step_records import PIPELINE_RECORD, read_pipeline_record
from mtkd.run_record import RUN_FILE
from tasks.common.errors import UserError
from tasks.common.progress import is_quiet, say
from tasks.common.reading import real_path
from tasks.common.records import write_record
from tasks.common.urls import as_url


@dataclass(frozen=True)
class StepResult:
    """The outcome of a step.

    Attributes:
        name: its name in the file; "STEP/TASK" if the step of the file is one command per task.
        command: the command line.
        out: the file or directory that it writes.
        reason: why it ran, or would run; None if it was finished before.
        seconds: the time of its last finished run; None if it never finished.
        bytes: the size of its output; None if there is none.
        estimated: True if `seconds` and `bytes` are estimates, for a step that never finished.
        note: what a placeholder in `command` stands for; None if the command has none.
    """

    name: str
    command: str
    out: str
    reason: str | None
    seconds: float | None
    bytes: int | None
    estimated: bool = False
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON."""
        return asdict(self)


class PipelineRunner:
    """Runs the steps of a pipeline, and records those that have run.

    Attributes:
        records: step -> `StepRecord`.
        inputs: step -> the files that it reads -> their digests.
        params: step -> the parameters of its command, as click parses them.
        pipeline: the pipeline file, relative to the output directory.
    """

    def __init__(self, steps: list[Step], out: Path, overwrite: bool, pipeline: str):
        self.steps = {step.name: step for step in steps}
        self.file, self.overwrite = out / PIPELINE_RECORD, overwrite
        recorded = read_pipeline_record(self.file, overwrite)
        self.records: dict[str, Any] = dict(recorded.steps)
        self.digests = Digests({path: list(record) for path, record in recorded.files.items()})
        self.inputs: dict[str, dict[str, str]] = {}
        self.params: dict[str, dict[str, Any]] = {}
        for step in steps:
            with naming_step(step.name):
                self.params[step.name] = check_step(step)
                check_step_output(step, Path(pipeline))
                files = input_files(step)
                self.inputs[step.name] = {as_url(str(path)): self.digests.of(path) for path in files}
        check_outputs(steps)
        self.pipeline = os.path.relpath(real_path(pipeline), real_path(out))
        self._refuse_steps_of_others(pipeline)

    def _refuse_steps_of_others(self, pipeline: str) -> None:
        """Raise UserError if a step would replace the output of another pipeline's step."""
        for step in () if self.overwrite else self.steps.values():
            owner = self.records.get(step.name, {}).get("pipeline", self.pipeline)
            path = self.file.parent / owner
            if owner != self.pipeline and path.is_file() and self._reason(step):
                raise UserError(
                    f"step {step.name!r}: {step.out} is the output of the pipeline {os.path.relpath(path)}",
                    hint=f"set another out = '...' in {pipeline}, or replace it with `overwrite=True`",
                )

    def plan(self, estimate: bool) -> list[StepResult]:
        """What would run; `estimate`: also estimate the times of steps that never finished."""
        rerun: list[str] = []
        results = []
        for step in self.steps.values():
            results.append(self._result(step, self._reason(step, rerun), rerun))
            rerun += [step.name] if results[-1].reason else []
        if not estimate:
            return results
        requested = [result.name for result in results if result.reason and result.seconds is None]
        estimates = estimate_steps(list(self.steps.values()), requested)
        return [
            replace(result, **vars(estimates[result.name]), estimated=True)
            if result.name in estimates
            else result
            for result in results
        ]

    def run(self) -> list[StepResult]:
        """Run the steps that are not finished."""
        results = []
        for number, step in enumerate(self.steps.values(), start=1):
            reason = self._reason(step)
            say(f"\n== {number}/{len(self.steps)} {step.title} ({reason or 'finished before'})")
            if reason:
                with naming_step(step.name):
                    self._run(step)
                say(f"step {number} took {self.records[step.name]['seconds']:.0f} s")
            results.append(self._result(step, reason))
        return results

    def _run(self, step: Step) -> None:
        """Run a step, and record before that it was started, and after that it is finished."""
        record, state = self.records.get(step.name), self._state(step)
        options = {param.name for param in find_command(step.command).params}
        argv, replaces = list(state["words"]), None
        if self.overwrite or (record and record["out"] == step.out and not _resumes(record, state)):
            argv += ["--overwrite"] if "overwrite" in options else []
            replaces = _changed_at(Path(step.out))
        seconds = (record or {}).get("seconds")
        self._save_record(step, state | {"finished": None, "seconds": seconds, "replaces": replaces})
        say(f"$ mtkd {shlex.join(argv)}")
        started = time.monotonic()
        execute(step.command, [*argv, *(["--quiet"] if is_quiet() and "quiet" in options else [])])
        seconds = time.monotonic() - started
        self._save_record(step, state | {"finished": datetime.now(UTC).isoformat(), "seconds": seconds})

    def _save_record(self, step: Step, record: dict[str, Any]) -> None:
        self.records[step.name] = record | {"pipeline": self.pipeline}
        write_record(self.file, {"steps": self.records, "files": self.digests.current})

    def _record(self, step: Step) -> dict[str, Any] | None:
        """The `StepRecord` of a step, with the current paths of its inputs if the job has been moved."""
        record: dict[str, Any] | None = self.records.get(step.name)
        if record is None:
            return None
        return record | {"inputs": at_current_paths(record["inputs"], self.inputs[step.name])}

    def _state(self, step: Step) -> dict[str, Any]:
        """The part of a `StepRecord` that decides whether a finished step has to run again."""
        after = {need: self.records.get(need, {}).get("finished") for need in step.needs}
        return {
            "words": self._argv(step),
            "out": step.out,
            "inputs": self.inputs[step.name],
            "after": after,
        }

    def _argv(self, step: Step, rerun: Collection[str] = ()) -> list[str]:
        """The step's command; `@NAME` stands for a number of steps that is not known yet."""
        steps_of = step.steps_of
        if steps_of and steps_of not in rerun and self.records.get(steps_of, {}).get("finished"):
            run = Path(self.steps[steps_of].out)
            return step.argv_with_steps_of(run) if (run / RUN_FILE).is_file() else step.argv()
        return step.argv()

    def _reason(self, step: Step, rerun: Collection[str] = ()) -> str | None:
        """Why a step has to run; None if it is finished. `rerun`: the steps that will run before it."""
        record, state = self._record(step), self._state(step)
        if self.overwrite:
            return "everything runs again"
        if record is None:
            return "not run yet"
        changed = _difference(record["words"], self._argv(step, rerun))
        reasons = [f"changed: {changed}"] if changed else []
        paths = sorted(record["inputs"].keys() | state["inputs"].keys())
        reasons += [f"{p} has changed" for p in paths if record["inputs"].get(p) != state["inputs"].get(p)]
        for needed_step, stamp in state["after"].items():
            if needed_step in rerun or record["after"].get(needed_step) != stamp:
                reasons.append(f"{needed_step!r} {'runs' if needed_step in rerun else 'has run'} again")
        if record["finished"] and not Path(step.out).exists():
            reasons.append(f"{step.out} is missing")
        if not record["finished"] and not reasons:
            moved = record["inputs"] != self.records[step.name]["inputs"]  # a run records their paths
            resumed = "starts over, since the job was moved" if moved else "resumes"
            reasons.append(f"it was interrupted, and {resumed}")
        return "; ".join(reasons) or None

    def _result(self, step: Step, reason: str | None, rerun: Collection[str] = ()) -> StepResult:
        words, note = _with_placeholder(self._argv(step, rerun), step.steps_of)
        line = f"mtkd {shlex.join(words)}"
        seconds = self.records.get(step.name, {}).get("seconds")
        return StepResult(step.name, line, step.out, reason, seconds, size_of(Path(step.out)), note=note)


def _with_placeholder(words: Sequence[str], steps_of: str | None) -> tuple[list[str], str | None]:
    """A command with N in place of a number of steps that is not known yet, and a note that explains N."""
    if steps_of is None or f"@{steps_of}" not in words:
        return list(words), None
    note = (
        f"N is the number of steps that {steps_of!r} takes, which is known once it has run; a setting "
        "train.steps_per_epoch then gives both steps as many evaluations"
    )
    return ["N" if word == f"@{steps_of}" else word for word in words], note


def _resumes(record: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """True if a step's output was written by an interrupted call of the same command, which can be resumed.

    It was not if the output that the interrupted call had to replace is still there.
    """
    same_command = not record["finished"] and all(record[key] == value for key, value in state.items())
    replaces = record.get("replaces")
    return same_command and (replaces is None or replaces != _changed_at(Path(state["out"])))


def _changed_at(path: Path) -> int | None:
    """When a file, or the newest file in a directory, was written, in ns; None if there is none."""
    files = [file for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file()]
    return max((file.stat().st_mtime_ns for file in files), default=None)


def _difference(words_before: list[str], words_now: list[str]) -> str:
    """The options of a command that have changed, as text; "" if none has."""
    old, new = _options(words_before), _options(words_now)
    if any(option.startswith("--steps @") for option in new):
        unknown = ("--steps ", "--set train.steps_per_epoch=")  # until the other step has run
        old, new = ([o for o in options if not o.startswith(unknown)] for options in (old, new))
    added = [o for o in new if o not in old]
    removed = [o for o in old if o not in new]
    changes = [f"now {', '.join(added)}"] if added else []
    return "; ".join(changes + ([f"the last run had {', '.join(removed)}"] if removed else []))


def _options(argv: Iterable[str]) -> list[str]:
    """The command with its arguments, and then each option with its value, as one text each."""
    options: list[str] = []
    for argument in argv:
        if argument.startswith("--") or not options:
            options.append(argument)
        else:
            options[-1] += f" {shlex.quote(argument)}"
    return options
