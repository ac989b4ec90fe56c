"""The files of finished runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from mtkd.evaluation.differences import Splits
from mtkd.evaluation.scoring import read_predictions
from mtkd.models.saved_model import read_saved
from mtkd.run_record import RUN_FILE, read_run_record
from mtkd.training.run_directory import PREDICTIONS
from tasks.common.digests import check_digests
from tasks.common.errors import UserError, brief
from tasks.common.records import MAX_EXACT_INTEGER, check_record
from tasks.task import Task

TEACHER = "teacher"
STUDENT = "student"
CONTROL = "control"
FINETUNED = "fine-tuned"
_REQUIRED = (
    "status",
    "versions",
    "identity.command",
    "identity.settings.name",
    "identity.settings.train.seed",
)
ROLES = (TEACHER, STUDENT, CONTROL, FINETUNED)


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run of `refine`, `distill` or `finetune`.

    Attributes:
        name: short and unique in the report.
        record: the content of run.json.
        tasks: the tasks of its model, by name.
        log: the records of log.jsonl, those of all stages with their steps counted on.
        stages: (first step, name) of each stage, for recipes that have some.
        predictions: task -> split -> what it predicted for the validation rows; empty if they are missing.
    """

    path: Path
    name: str
    record: dict[str, Any]
    tasks: dict[str, Task]
    log: list[dict[str, Any]]
    stages: list[tuple[int, str]]
    predictions: dict[str, Splits]

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the result of the run."""
        identity: dict[str, Any] = self.record["identity"]
        return identity

    @property
    def role(self) -> str:
        """The role of the run in a comparison, one of `ROLES`."""
        if self.identity["command"] != "distill":
            return TEACHER if self.identity["command"] == "refine" else FINETUNED
        return CONTROL if self.identity["settings"]["supervision"] == "labels" else STUDENT

    @property
    def seed(self) -> int:
        """The seed of the training."""
        return int(self.identity["settings"]["train"]["seed"])

    @property
    def command(self) -> str | None:
        """The command line; None for a run that Python code started."""
        line: str | None = self.record.get("command_line")
        return line

    def by_task(self, key: str) -> dict[str, float]:
        """A value of the recorded scores ("primary", "majority") by task, averaged over its splits."""
        values_by_task: dict[str, list[float]] = {}
        for scores in (self.record.get("scores") or {}).values():
            values_by_task.setdefault(scores["task"], []).append(scores[key])
        return {task: statistics.fmean(values) for task, values in values_by_task.items()}


def run_directories(paths: Sequence[Path]) -> list[Path]:
    """The directories of all runs in some directories.

    Raises:
        UserError: there is no such directory, or no run.
    """
    for path in paths:
        if not path.is_dir():
            raise UserError(f"there is no directory {path}", expected="run directories")
    files = {file.resolve() for path in paths for file in path.rglob(RUN_FILE)}
    if not files:
        raise UserError(
            f"no run in {', '.join(map(str, paths))}" if paths else "no run is named",
            expected="run directories of mtkd refine, distill or finetune, or directories that contain some",
        )
    return sorted(file.parent for file in files)


def read_run(path: Path, name: str) -> Run:
    """Read what a run wrote.

    Raises:
        UserError: it is unfinished, or a file is missing or damaged.
    """
    record = read_run_record(path / RUN_FILE, *_REQUIRED)
    try:
        status = record["status"]
        if status != "finished":
            raise UserError(
                f"the run in {path} is {status}, not finished",
                hint="run its command again to finish it, or name only finished runs",
            )
        tasks = {task.name: task for task in read_saved(path).tasks}
        log, stages = _read_log(path, record["training"])
        predictions = read_predictions(path / PREDICTIONS, tasks.values())
        run = Run(path, name, record, tasks, log, stages, dict(predictions))
        _ = (
            run.role,
            run.seed,
            [tasks[task] for task in run.by_task("primary")],
            record["parameters"]["total"],
        )
        _ = run.role != FINETUNED or run.identity["model"]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"the {RUN_FILE} in {path} cannot be read: {error} is missing or damaged",
            hint="train the run again with this version, or leave it out",
        ) from error
    return run


def _read_log(path: Path, training: dict[str, Any]) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """The records of log.jsonl; those of stages with their steps counted on, and where each stage starts."""
    names = [name for name in training if (path / "stages" / name).is_dir()]
    log: list[dict[str, Any]] = []
    stages: list[tuple[int, str]] = []
    for directory in [path / "stages" / name for name in names] or [path]:
        start = log[-1]["step"] if log else 0
        stages += [(start, directory.name)] if names else []
        file = directory / "log.jsonl"
        check_digests(path, [file.relative_to(path).as_posix()])
        try:
            lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
            records = [check_record(from_json(line), dict[str, float], str(file)) for line in lines]
            log += [record | {"step": start + _step(record, file)} for record in records]
        except (ValueError, KeyError) as error:
            raise UserError(f"the log {file} cannot be read: {error}") from error
    return log, stages


def _step(record: dict[str, float], file: Path) -> int:
    """The step of a record of a log."""
    step = record.get("step")
    if step is None:
        raise UserError(f"{file}: a record lacks the key 'step'")
    if not (0 <= step <= MAX_EXACT_INTEGER and step == int(step)):
        raise UserError(f"{file}: step = {brief(step)} is not valid", expected="an integer of 0 or more")
    return int(step)
