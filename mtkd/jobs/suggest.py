"""Suggest students: time models of several shapes, with random weights, against the teacher."""

from __future__ import annotations

import re
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
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
from mtkd.jobs.training_data import trainable_tasks
from mtkd.models.encoders.encoder_registry import encoder_class
from mtkd.models.encoders.pretrained_config import TransformerConfig
from mtkd.models.encoders.static import StaticSettings, width_settings
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.parameter_count import count_parameters
from mtkd.models.saved_model import ModelInfo
from mtkd.outputs import EncoderSpec
from mtkd.recipes import load_settings
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.teachers.transformers_checkpoint import checkpoint_directory
from tasks.common.errors import UserError
from tasks.common.progress import say
from tasks.data.loading import load_rows
from tasks.data.sources import open_data
from tasks.data.unlabelled import UnlabelledRequest
from tasks.glue import TASKS
from tasks.task import Task
from tasks.task_names import TaskSpec, describe, resolve
from tasks.tokens.pruned_vocabulary import prune_vocabulary
from tasks.tokens.tokeniser import Tokeniser

NOTE = """The order is that of the expected scores. Only three shapes were measured (docs/results.md): with
500 labels and up to 10,000 texts per task, 3 of 6 layers kept 95% of what the teacher gains over the best
constant prediction, static 89% and a BiLSTM of 64 units 74%. Narrow Transformers start from random weights,
so they need the most text. Pruned and full vocabularies were not compared."""


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
    if data is not None and tasks is None and not model.tasks:
        raise UserError("`data` needs `tasks`, since this teacher has none", hint="name them: `tasks='sst2'`")
    teacher_tasks = list(model.tasks.values())
    student_tasks = resolve(tasks, teacher_tasks) if tasks is not None else teacher_tasks or [TASKS["sst2"]]
    if teacher_tasks:
        model.require_heads(student_tasks, f"the teacher {teacher}")
    task_spec = tasks if tasks is not None else teacher_tasks or None
    model.set_tasks(student_tasks)
    own_rows = data is None and tasks is not None and all(task.files for task in student_tasks)
    if data is None and not own_rows and unlabelled and unlabelled.files:
        raise UserError(
            "`unlabelled` has no effect without training rows",
            hint="pass `data='DIR'`, or task files with [files] as `tasks`",
        )
    has_rows = own_rows or data is not None
    pruned = _pruned_tokeniser(model.tokeniser, student_tasks, data, unlabelled) if has_rows else None
    recipes, student_models = _students(ref, model, student_tasks, pruned)
    models = {teacher: model, **student_models}
    times = _seconds_per_batch(models, settings)
    parameters = {name: count_parameters(model).total for name, model in models.items()}
    megabytes = {name: total * 4 / 1e6 for name, total in parameters.items()}
    data_of_command = [] if own_rows else data
    row_options = _row_options(data_of_command, task_spec, unlabelled)
    is_teacher = ref.saved is not None or checkpoint_directory(teacher) is not None
    trained_teacher = teacher if is_teacher else "runs/teacher"
    students: list[SuggestedStudent] = []
    shortfalls: dict[str, float] = {}
    for name, (recipe, changes) in recipes.items():
        rounds = zip(times[teacher], times[name], strict=True)
        speeds = [teacher_seconds / student_seconds for teacher_seconds, student_seconds in rounds]
        speed = statistics.median(speeds)
        size = megabytes[name] / 4 if int8 else megabytes[name]
        shortfalls[name] = _shortfall(speed, size, target_speedup, max_mb)
        sets = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
        options = [*row_options, *sets, "--out", f"runs/{re.sub(r'[^a-z0-9]+', '-', name.lower())}"]
        students.append(
            SuggestedStudent(
                name,
                recipe,
                changes,
                parameters[name],
                megabytes[name],
                settings.batch / statistics.median(times[name]),
                speed,
                min(speeds),
                max(speeds),
                shortfalls[name] <= 1,
                shlex.join(["mtkd", "distill", recipe, "--teacher", trained_teacher, *options]),
            )
        )
    nearest = min(shortfalls, key=lambda name: shortfalls[name])
    options = [*_row_options(data_of_command, task_spec, None), "--out", trained_teacher]
    return Suggestions(
        teacher,
        settings.batch / statistics.median(times[teacher]),
        megabytes[teacher],
        students,
        None if shortfalls[nearest] <= 1 else nearest,
        None if is_teacher else shlex.join(["mtkd", "refine", "--encoder", teacher, *options]),
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


def _seconds_per_batch(
    models: Mapping[str, MultiTaskModel], settings: BenchSettings
) -> dict[str, list[float]]:
    """Seconds per batch of each model in each round, timed in turn."""
    head = common_head(models, None)
    ready = {name: model.to(settings.device).eval() for name, model in models.items()}
    runs = {name: batch_runner(model, head, settings) for name, model in ready.items()}
    return time_in_turn(runs, settings.rounds, settings.warmup, wait_for(settings.device))


def _students(
    ref: TeacherRef, teacher: MultiTaskModel, tasks: list[Task], pruned: Tokeniser | None
) -> tuple[dict[str, tuple[str, dict[str, Any]]], dict[str, MultiTaskModel]]:
    """The students that are timed: name -> (recipe, settings), and name -> model with random weights.

    Args:
        pruned: the tokeniser of additional students with a pruned vocabulary; None = no such students.
    """
    recipes: dict[str, tuple[str, dict[str, Any]]] = {}
    models: dict[str, MultiTaskModel] = {}
    predicts_spans = any(task.type.predicts_spans for task in tasks)
    for name, recipe, changes in _candidates(ref.config.spec, teacher.encoder.embeddings.weight.shape[1]):
        student = _random_student(recipe, changes, ref, teacher.tokeniser, tasks)
        if predicts_spans and not student.encoder.config.spec.offers.sequence:
            continue  # it has no vector for each token
        recipes[name], models[name] = (recipe, changes), student
        if pruned and recipe in ("static", "mkd-lstm"):
            pruned_name = f"{name}, {pruned.vocab_size:,} tokens"
            recipes[pruned_name] = (recipe, {**changes, "student.vocabulary": "pruned"})
            models[pruned_name] = _random_student(recipe, changes, ref, pruned, tasks)
    return recipes, models


def _candidates(teacher: EncoderSpec, embedding_size: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each student as (name, recipe, settings that differ from the recipe), in order of expected scores.

    Args:
        embedding_size: the width of the teacher's word embeddings.
    """
    for layers in range(min(6, teacher.layers - 1), 0, -1):
        yield f"{layers} of {teacher.layers} layers", "layerwise-3", {"student.transformer.layers": layers}
    yield "static", "static", dict(width_settings(StaticSettings(), teacher))
    yield "BiLSTM, 256 units", "mkd-lstm", {}
    for units in (128, 64):
        sizes = {"embedding_size": embedding_size, "projection_size": 2 * units, "hidden_size": units}
        sets = {f"student.bilstm.{name}": size for name, size in (sizes | {"output_size": 4 * units}).items()}
        yield f"BiLSTM, {units} units", "mkd-lstm", {"student.bilstm.embeddings": "teacher", **sets}
    for layers, head_size in ((4, 26), (2, 16)):  # TinyBERT's head size, and a smaller one
        width = head_size * teacher.heads
        if width < teacher.hidden_size:
            sizes = {"layers": layers, "hidden_size": width, "intermediate_size": 4 * width}
            sizes["heads"] = teacher.heads
            sets = {f"student.transformer.{name}": size for name, size in sizes.items()}
            yield f"{layers} layers of {width}", "tinybert-4", {**sets, "student.transformer.init": "random"}


def _random_student(
    recipe: str, changes: Mapping[str, Any], teacher: TeacherRef, tokeniser: Tokeniser, tasks: list[Task]
) -> MultiTaskModel:
    """The student of a recipe with random weights."""
    student_settings = load_settings(recipe, "distill", changes).student
    encoder = encoder_class(student_settings.kind)
    config = encoder.config_from_settings(student_settings, teacher.init_spec, tokeniser.vocab_size)
    return MultiTaskModel(encoder(config), tasks, tokeniser, ModelInfo(8, student_settings.head_hidden_size))


def _pruned_tokeniser(
    tokeniser: Tokeniser, tasks: list[Task], data: Any, unlabelled: UnlabelledRequest | None
) -> Tokeniser | None:
    """The tokeniser, pruned to the tokens of the training rows; None, with a message, if it cannot be."""
    source = open_data(data)
    unlabelled = unlabelled or UnlabelledRequest()
    trained = trainable_tasks(tasks)
    unlabelled.check(trained)
    texts: list[Any] = []
    for task in trained:
        assert task.train is not None, "trainable_tasks refuses others"
        texts += unlabelled.append(source, task, load_rows(source, task, task.train))[0].texts
    try:
        return prune_vocabulary(tokeniser, texts, 60_000)[0]
    except UserError as error:
        say(f"no students with a pruned vocabulary: {error.problem}")
        return None


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
