"""Evaluate: score a trained model on labelled splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mtkd.device import find_device
from mtkd.evaluation.baseline import baseline_warnings
from mtkd.evaluation.class_report import ClassReport, class_report
from mtkd.evaluation.scoring import TaskScores, by_task, score_logits
from mtkd.jobs.teachers import find_teachers
from mtkd.models.inference import predict_logits
from mtkd.models.multitask import MultiTaskModel, require_heads
from mtkd.models.saved_model import read_saved
from mtkd.teachers.checkpoint import checkpoint_directory
from tasks.batching import Encoded
from tasks.errors import UserError
from tasks.progress import progress
from tasks.rows import Rows, has_label
from tasks.sources import DataSource, FilesSource, load_rows, open_data
from tasks.task import Task
from tasks.task_names import TaskSpec, resolve


@dataclass(frozen=True, repr=False)
class Evaluation(Mapping[str, TaskScores]):
    """The scores of a model, by task; by "task/split" for a task that was scored on several splits.

    Attributes:
        scores: one entry per scored split.
        reports: "task/split" -> per-class report, for tasks with one class per row.
        skipped: "task" or "task/split" -> why it was not scored.
        warnings: warnings about these scores.
    """

    scores: list[TaskScores]
    reports: dict[str, ClassReport]
    skipped: dict[str, str]
    warnings: list[str]

    def __str__(self) -> str:
        """A small table: task or split, rows, metrics, score and baseline; then what was skipped."""
        lines = [("task", "rows", "score", "baseline", "metrics")]
        for name, score in self.items():
            metrics = ", ".join(f"{metric} {value:.3f}" for metric, value in score.metrics.items())
            lines.append((name, f"{score.rows:,}", f"{score.primary:.3f}", f"{score.majority:.3f}", metrics))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join(
                [
                    first.ljust(widths[0]),
                    *(v.rjust(w) for v, w in zip(values, widths[1:-1], strict=True)),
                    last,
                ]
            )
            for first, *values, last in lines
        ]
        skipped = [f"{name} is skipped: {reason}" for name, reason in self.skipped.items()]
        return "\n".join([*table, *skipped, *self.warnings])

    __repr__ = __str__

    def __getitem__(self, name: str) -> TaskScores:
        return by_task(self.scores)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(by_task(self.scores))

    def __len__(self) -> int:
        return len(self.scores)


def evaluate(
    model: Path | MultiTaskModel,
    data: Any,
    spec: TaskSpec | None = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
) -> Evaluation:
    """Score a model on the validation splits of some tasks.

    Tasks whose split is missing or unlabelled are skipped, as long as another task can be scored.

    Args:
        model: the directory of a model, or the model itself, which stays on its device; or a directory or hub
            name of a fine-tuned checkpoint of transformers, for one task.
        spec: the tasks; by default all that the model was trained on. These need no TOML file.
        split: a split to score instead of the validation splits.
        limit: maximum number of rows per split.
        device: such as "cuda:1"; None = the best available device.

    Raises:
        UserError: the model or device does not exist, the model has no head for a task, a row is invalid, or
            no task can be scored.
    """
    target = find_device(device)
    if not isinstance(model, MultiTaskModel) and checkpoint_directory(str(model)) is not None:
        model = _checkpoint(model, spec).to(target)
    known = list(model.tasks.values()) if isinstance(model, MultiTaskModel) else read_saved(model).tasks
    tasks = resolve(spec, known) if spec else known
    name = "the model" if isinstance(model, MultiTaskModel) else f"the model {model}"
    require_heads({task.head: task for task in known}, tasks, name)
    rows, skipped = _labelled_rows(open_data(data), tasks, split, limit)
    if not rows:
        reasons = "\n".join(f"  {name}: {reason}" for name, reason in skipped.items())
        raise UserError(
            f"no task can be scored:\n{reasons}",
            expected="labelled rows of at least one task",
            hint="choose another split or other data; use `mtkd predict` for unlabelled rows",
        )
    loaded = model if isinstance(model, MultiTaskModel) else MultiTaskModel.load(model).to(target)
    scores, reports = [], {}
    for task, part in rows:
        score, report = _score(loaded, task, part, batch_size)
        scores.append(score)
        if report:
            reports[f"{task.name}/{part.split}"] = report
    warnings = baseline_warnings({task.name: task for task in tasks}, scores)
    return Evaluation(scores, reports, skipped, warnings)


def _checkpoint(model: Path, spec: TaskSpec | None) -> MultiTaskModel:
    """Load a checkpoint of transformers, which does not know the name of its task."""
    tasks = resolve(spec) if spec else []
    if len(tasks) != 1:
        raise UserError(
            f"{model} is a checkpoint of transformers, which answers one task",
            hint="name the task: `tasks=NAME`, or a task file",
        )
    found = find_teachers(str(model), tasks, heads=True)
    assert found is not None, "a teacher was named"
    return found.load(None)


def _labelled_rows(
    source: DataSource, tasks: Sequence[Task], split: str | None, limit: int | None
) -> tuple[list[tuple[Task, Rows]], dict[str, str]]:
    """The rows to score, and the skipped splits and tasks ("task" or "task/split" -> reason).

    Raises:
        UserError: a row is invalid.
    """
    found: list[tuple[Task, Rows]] = []
    skipped: dict[str, str] = {}
    for original in tasks:
        wanted = [split] if split else list(original.validation or original.test)
        task, moved = _without_missing_files(original, wanted)
        if isinstance(source, FilesSource):  # there is no other place to search
            task = original
        present = source.splits(task)
        for name in [name for name in wanted if name in present]:
            rows = load_rows(source, task, name, limit)
            if rows.labelled:
                found.append((task, rows))
            else:
                unlabelled = int((~has_label(rows.labels)).sum())
                skipped[f"{task.name}/{name}"] = f"not labelled ({unlabelled:,} of {len(rows):,} rows)"
        if not set(wanted) & set(present):
            has = f"its splits are {', '.join(present)}" if present else "it has no data for this task"
            skipped[task.name] = f"no split {' or '.join(wanted)} in {source.name!r}: {has}{moved}"
    return found, skipped


def _without_missing_files(task: Task, splits: Sequence[str]) -> tuple[Task, str]:
    """The task without its own files if those of `splits` are missing, and a remark about that.

    A model records the paths of the files beside a task's TOML file. If they have moved, the rows are
    searched in the data directory under the task's name.
    """
    files = [Path(task.files[split]) for split in splits if split in task.files]
    missing = [file for file in files if file.is_absolute() and not file.is_file()]
    if not missing:
        return task, ""
    remark = (
        f"; {missing[0]}, which the model recorded as the task's file, is missing: pass the task's TOML "
        f"file, or put the rows under {task.name}/ in the data directory"
    )
    return replace(task, files={}), remark


def _score(
    model: MultiTaskModel, task: Task, rows: Rows, batch_size: int
) -> tuple[TaskScores, ClassReport | None]:
    encoded = Encoded.encode(model.reader.rows(rows), model.tokeniser)
    with progress(f"evaluating {task.name}/{rows.split}", len(encoded)) as advance:
        logits = predict_logits(model, task, encoded, batch_size=batch_size, advance=advance)
    scores = score_logits(task, rows.split, encoded, logits, model.reader, model.threshold(task))
    if not task.type.one_class:
        return scores, None
    return scores, class_report(task, task.type.decode(task, logits), encoded.labels)
