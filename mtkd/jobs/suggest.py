"""Suggest students: time models of several shapes, with random weights, against the teacher."""

from __future__ import annotations

import re
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mtkd.evaluation.inference_bench import (
    BenchSettings,
    batch_runner,
    check_length,
    common_head,
    time_in_turn,
    wait_for,
)
from mtkd.jobs.candidate_students import candidate_students, pruned_tokeniser
from mtkd.models.encoders.pretrained_config import TransformerConfig
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.parameter_count import count_parameters
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.teachers.transformers_checkpoint import checkpoint_directory
from mtkd.torch_state import isolated
from tasks.common.errors import UserError
from tasks.data.unlabelled import UnlabelledRequest
from tasks.glue import TASKS
from tasks.task import Task
from tasks.task_names import TaskSpec, describe, resolve
from tasks.tokens.tokeniser import Tokeniser

NOTE = """The order is that of the expected scores. Few shapes were measured (docs/results.md). With 500
labels and up to 10,000 texts per task, 3 of 6 layers kept 95% of what the teacher gains over the best
constant prediction, 2 layers and static 89%, 1 layer 86% and a BiLSTM of 64 units 74%. With a teacher that
learned from up to 10,000 labels per task, 3 layers kept 88%, 2 layers 81%, and 1 layer and static 77%.
With a base-size teacher on SST-2 (one seed), 6 layers of minilm kept 92%, 3 of the teacher's 12 layers
87%, 3 layers of minilm 84% and static 72%. Narrow Transformers start from random weights, so they need the
most text. Pruned and full vocabularies were not compared."""


@dataclass(frozen=True)
class SuggestedStudent:
    """A student that was timed with random weights.

    Attributes:
        recipe: the recipe that trains it, with `settings` (dotted setting -> value).
        parameters: the number of weights, including the heads.
        megabytes: the size of the weights in fp32, in MB (10^6 bytes).
        rows_per_second: the throughput at the median time per batch.
        speed: the teacher's time divided by the student's, the median over rounds; `slowest` and `fastest`
            are the smallest and the largest ratio.
        within_targets: True if it reaches the targets.
        command: the command that trains it.
    """

    name: str
    recipe: str
    settings: dict[str, Any]
    parameters: int
    megabytes: float
    rows_per_second: float
    speed: float
    slowest: float
    fastest: float
    within_targets: bool
    command: str


@dataclass(frozen=True)
class Suggestions:
    """Students in the order of their expected scores.

    Attributes:
        teacher: the name of the teacher; for `teacher_rows_per_second` and `teacher_megabytes`, see
            `SuggestedStudent`.
        nearest: the name of the student that misses the targets by the smallest factor; None if a student
            reaches them.
        first: the command that trains a teacher; None unless `teacher` is an encoder without task heads.
    """

    teacher: str
    teacher_rows_per_second: float
    teacher_megabytes: float
    students: list[SuggestedStudent]
    nearest: str | None
    first: str | None

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values."""
        return asdict(self)


@isolated
def suggest(
    teacher: str,
    target_speedup: float | None,
    max_mb: float | None,
    settings: BenchSettings,
    *,
    data: Any = None,
    tasks: TaskSpec | None = None,
    unlabelled: UnlabelledRequest | None = None,
    int8: bool = False,
) -> Suggestions:
    """Time students with random weights and the teacher in turn, on random token ids.

    Args:
        target_speedup: how many times faster than the teacher a student should be; None = any speed.
        max_mb: the maximum size of a student in MB; None = any size.
        settings: its `task` is not used.
        data, tasks, unlabelled: the training rows, for students with a pruned vocabulary; without rows, there
            are no such students. `data` is not needed if all `tasks` are task files with [files].
        int8: `max_mb` limits the size of an int8 export (a quarter of fp32), not that of the fp32 weights.

    Raises:
        UserError: the teacher is unknown or not a Transformer, or the rows are invalid.
    """
    if int8 and max_mb is None:
        raise UserError("`int8` has no effect without `max_mb`", hint="pass the maximum size: `max_mb=20`")
    ref, model = _load_teacher(teacher, settings)
    task_spec = tasks if tasks is not None else list(model.tasks.values()) or None
    student_tasks = _student_tasks(teacher, model, data, tasks)
    model.set_tasks(student_tasks)
    own_rows = data is None and tasks is not None and all(task.files for task in student_tasks)
    has_rows = own_rows or data is not None
    pruned = _pruned_vocabulary(model, student_tasks, data, unlabelled, has_rows=has_rows)
    recipes, student_models = candidate_students(ref, model, student_tasks, pruned)
    models = {teacher: model, **student_models}
    times = _seconds_per_batch(models, settings)
    megabytes = {name: count_parameters(model).total * 4 / 1e6 for name, model in models.items()}
    data_of_command = [] if own_rows else data
    row_options = _row_options(data_of_command, task_spec, unlabelled)
    is_teacher = ref.saved is not None or checkpoint_directory(teacher) is not None
    trained_teacher = teacher if is_teacher else "runs/teacher"
    students: list[SuggestedStudent] = []
    shortfalls: dict[str, float] = {}
    for name, (recipe, changes) in recipes.items():
        rounds = zip(times[teacher], times[name], strict=True)
        speeds = [teacher_seconds / student_seconds for teacher_seconds, student_seconds in rounds]
        size = megabytes[name] / 4 if int8 else megabytes[name]
        shortfalls[name] = _shortfall(statistics.median(speeds), size, target_speedup, max_mb)
        students.append(
            SuggestedStudent(
                name=name,
                recipe=recipe,
                settings=changes,
                parameters=count_parameters(models[name]).total,
                megabytes=megabytes[name],
                rows_per_second=settings.batch / statistics.median(times[name]),
                speed=statistics.median(speeds),
                slowest=min(speeds),
                fastest=max(speeds),
                within_targets=shortfalls[name] <= 1,
                command=_distill_command(name, recipe, changes, trained_teacher, row_options),
            )
        )
    nearest = min(shortfalls, key=lambda name: shortfalls[name])
    options = [*_row_options(data_of_command, task_spec, None), "--out", trained_teacher]
    return Suggestions(
        teacher=teacher,
        teacher_rows_per_second=settings.batch / statistics.median(times[teacher]),
        teacher_megabytes=megabytes[teacher],
        students=students,
        nearest=None if shortfalls[nearest] <= 1 else nearest,
        first=None if is_teacher else shlex.join(["mtkd", "refine", "--encoder", teacher, *options]),
    )


def _load_teacher(name: str, settings: BenchSettings) -> tuple[TeacherRef, MultiTaskModel]:
    """Load the teacher; UserError if it is not a Transformer."""
    ref = TeacherRef.find(name, heads=False)
    if not isinstance(ref.config, TransformerConfig):
        raise UserError(
            f"the teacher {name} is not a Transformer ({ref.config.kind})",
            expected="a Transformer, since some of the students consist of its layers",
        )
    model = ref.load(max_length=8).eval()  # any length: the timed rows are token ids, which are not truncated
    check_length(name, model, settings)
    return ref, model


def _student_tasks(teacher: str, model: MultiTaskModel, data: Any, tasks: TaskSpec | None) -> list[Task]:
    """The tasks of the students: the given ones, else those of the teacher, or sst2 if it has none.

    Args:
        teacher: the name of the teacher, for the error.

    Raises:
        UserError: the teacher has no head for a task, or nothing names the tasks of `data`.
    """
    teacher_tasks = list(model.tasks.values())
    if data is not None and tasks is None and not teacher_tasks:
        raise UserError("`data` needs `tasks`, since this teacher has none", hint="name them: `tasks='sst2'`")
    student_tasks = resolve(tasks, teacher_tasks) if tasks is not None else teacher_tasks or [TASKS["sst2"]]
    if teacher_tasks:
        model.require_heads(student_tasks, f"the teacher {teacher}")
    return student_tasks


def _pruned_vocabulary(
    model: MultiTaskModel,
    tasks: list[Task],
    data: Any,
    unlabelled: UnlabelledRequest | None,
    *,
    has_rows: bool,
) -> Tokeniser | None:
    """The tokeniser of students with a pruned vocabulary; None if there are no such students.

    Raises:
        UserError: there are unlabelled rows, but no training rows, or the rows are invalid.
    """
    if has_rows:
        return pruned_tokeniser(model.tokeniser, tasks, data, unlabelled)
    if unlabelled and unlabelled.files:
        raise UserError(
            "`unlabelled` has no effect without training rows",
            hint="pass `data='DIR'`, or task files with [files] as `tasks`",
        )
    return None


def _seconds_per_batch(
    models: Mapping[str, MultiTaskModel], settings: BenchSettings
) -> dict[str, list[float]]:
    """Seconds per batch of each model in each round, timed in turn."""
    head = common_head(models, None)
    ready = {name: model.to(settings.device).eval() for name, model in models.items()}
    runs = {name: batch_runner(model, head, settings) for name, model in ready.items()}
    return time_in_turn(runs, settings.rounds, settings.warmup, wait_for(settings.device))


def _distill_command(
    name: str, recipe: str, changes: Mapping[str, Any], teacher: str, row_options: Sequence[str]
) -> str:
    """The command that trains a student; its run directory is named after the student."""
    sets = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    out = f"runs/{re.sub(r'[^a-z0-9]+', '-', name.lower())}"
    return shlex.join(["mtkd", "distill", recipe, "--teacher", teacher, *row_options, *sets, "--out", out])


def _row_options(data: Any, tasks: TaskSpec | None, unlabelled: UnlabelledRequest | None) -> list[str]:
    """The options of a command that name its rows; the user has to replace words in capitals."""
    sources: Sequence[Any] = data if isinstance(data, list) else [data]
    source_names = [
        str(source) if isinstance(source, str) or hasattr(source, "__fspath__") else "DATA"
        for source in sources
    ]
    options = [word for source in source_names for word in ("--data", source)]
    options += ["--tasks", "TASKS" if tasks is None else describe(tasks)]
    for task, files in (unlabelled.files if unlabelled else {}).items():
        for file in files if isinstance(files, list) else [files]:
            options += ["--unlabelled", f"{task}={file}"]
    return options


def _shortfall(speed: float, megabytes: float, target_speedup: float | None, max_mb: float | None) -> float:
    """The larger of the factors by which a student misses its targets; at most 1 if it reaches both."""
    return max(target_speedup / speed if target_speedup else 0, megabytes / max_mb if max_mb else 0)
