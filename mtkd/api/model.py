"""A trained model as Python code uses it: predict, evaluate, save."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from mtkd.device import best_device
from mtkd.evaluation.prediction import predict_rows
from mtkd.evaluation.scoring import TaskScores
from mtkd.jobs.evaluate import score_model
from mtkd.models.multitask import MultiTaskModel, is_saved_model
from tasks.errors import UserError, unknown
from tasks.files import read_json
from tasks.registry import TaskSpec, resolve
from tasks.rows import Rows
from tasks.sources import open_data
from tasks.tables import as_table
from tasks.task import Task


class Model:
    """A model with one head per task: a refined teacher, a student, or a fine-tuned model.

    Attributes:
        module: the torch module, `MultiTaskModel`.
        path: the run or model directory it was read from or trained in; None for a model made by hand.
    """

    def __init__(self, module: MultiTaskModel, path: Path | None = None):
        self.module, self.path = module, path

    def __repr__(self) -> str:
        tasks = ", ".join(self.tasks) or "no tasks"
        return f"<mtkd.Model {self.module.encoder.config.kind}: {tasks}; {self.path or 'not saved'}>"

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks that the model has heads for, by name."""
        return {task.name: task for task in self.module.tasks.values()}

    @property
    def scores(self) -> dict[str, TaskScores]:
        """The validation scores at the end of training, by task ("task/split" where a task has several)."""
        found = [TaskScores(**values) for values in self.module.info.scores.values()]
        return by_task(found)

    @property
    def record(self) -> dict[str, Any]:
        """The run's record (`run.json`): settings, digests, scores of every epoch; {} without a run."""
        file = self.path / "run.json" if self.path else None
        return read_json(file) if file and file.is_file() else {}

    def to(self, device: str | torch.device) -> Model:
        """Move the model to a device ("cpu", "cuda", "mps"); returns the model itself."""
        self.module.to(device)
        return self

    def task(self, task: str | Path | Task) -> Task:
        """One of the model's tasks by name, or a task (file, record) that one of its heads can answer.

        Raises:
            UserError: the model has no head for it.
        """
        if isinstance(task, str) and task in self.tasks:
            return self.tasks[task]
        if isinstance(task, str) and not task.endswith(".toml"):
            raise unknown("task of this model", task, self.tasks)
        (found,) = resolve(task)
        self.module.require([found], "the model")
        return found

    def predict(self, task: str | Path | Task, rows: Any, *, batch: int = 64) -> Any:
        """Answer rows.

        Args:
            rows: a list of strings (tasks of one text), of tuples (one value per text column) or of dicts;
                a DataFrame, datasets.Dataset, pyarrow.Table or mapping of columns.
            batch: rows per forward pass.

        Returns:
            One dict per row with `prediction`, and for classes `prediction_id` and `probabilities`; of a
            DataFrame the same DataFrame with these as further columns.

        Raises:
            UserError: no head for the task, a column is missing, or a value is not text.
        """
        found = self.task(task)
        table = as_table(rows, found.columns)
        answers = list(predict_rows(self.module, found, _rows_of(found, table), batch))
        if not hasattr(rows, "iloc"):
            return answers
        return rows.assign(**{key: [answer[key] for answer in answers] for key in (answers or [{}])[0]})

    def evaluate(
        self,
        data: Any,
        tasks: TaskSpec | None = None,
        *,
        split: str | None = None,
        limit: int | None = None,
        batch: int = 64,
    ) -> dict[str, TaskScores]:
        """Score the model on labelled rows.

        Args:
            data: "pocket", "hub", a directory, or tables such as {"rte": {"validation": frame}}.
            tasks: by default all that the model has heads for.
            split: another split than the validation ones.
            limit: at most so many rows per split.

        Returns:
            task -> scores ("task/split" where a task has several).

        Raises:
            UserError: no head for a task, or a split is missing or unlabelled.
        """
        names = None if tasks is None else self._named(tasks)
        found = score_model(self.module, open_data(data), names, split=split, limit=limit, batch_size=batch)
        return by_task(found)

    def _named(self, tasks: TaskSpec) -> list[Task]:
        parts: Sequence[Any] = [tasks] if isinstance(tasks, str | Path | Task) else list(tasks)
        words = [word for part in parts for word in (part.split(",") if isinstance(part, str) else [part])]
        known = self.tasks
        return resolve([known.get(word, word) if isinstance(word, str) else word for word in words])

    def save(self, directory: str | Path) -> Path:
        """Write the model to a directory that `mtkd.load` reads; returns the directory."""
        place = Path(directory)
        if place.exists() and (not place.is_dir() or any(place.iterdir())) and not is_saved_model(place):
            raise UserError(
                f"{place} is there already and holds no mtkd model", hint="name another directory"
            )
        self.module.save(place)
        return place


def by_task(scores: Sequence[TaskScores]) -> dict[str, TaskScores]:
    """Scores by task name; by "task/split" for tasks that were scored on several splits."""
    names = [score.task for score in scores]
    return {
        score.task if names.count(score.task) == 1 else f"{score.task}/{score.split}": score
        for score in scores
    }


def load(name: str | Path, *, device: str | None = None) -> Model:
    """A saved model by directory or name.

    Args:
        name: a run directory, the `model/` inside it, or the name of an mtkd model on the Hugging Face hub. A
            pretrained encoder (such as "minilm") gives a model without task heads.
        device: by default the GPU if there is one.

    Raises:
        UserError: nothing of that name, or damaged files.
    """
    place = Path(name)
    if is_saved_model(place) or place.is_dir():
        module = MultiTaskModel.load(place)
    elif (copy := _hub_copy(str(name))) is not None:
        place, module = copy, MultiTaskModel.load(copy)
    else:
        module = MultiTaskModel.without_heads(str(name), 128)
    model = Model(module, place if place.is_dir() else None)
    return model.to(device or best_device())


def _hub_copy(name: str) -> Path | None:
    """Where the hub's copy of an mtkd model lies on this disk; None if the name is that of an encoder."""
    from huggingface_hub import snapshot_download

    from mtkd.models.encoders.pretrained_config import DEFAULT_TEACHER
    from tasks.hub_loading import load_named

    if name == DEFAULT_TEACHER:
        return None
    wanted = ["*.json", "*.safetensors", "*.txt", "*.model"]
    found = load_named(
        lambda repository, local_files_only: snapshot_download(
            repository, local_files_only=local_files_only, allow_patterns=wanted
        ),
        name,
        "model",
    )
    return Path(found) if is_saved_model(Path(found)) else None


def _rows_of(task: Task, table: pa.Table) -> Rows:
    """Unlabelled rows of a task, checked as rows of a file are."""
    from tasks.sources import load_rows
    from tasks.tables import TableSource

    unlabelled = unlabelled_task(task)
    return load_rows(TableSource({task.name: {"rows": table}}), unlabelled, "rows")


def unlabelled_task(task: Task) -> Task:
    """The task as rows without labels are read for it."""
    from dataclasses import replace

    return replace(task, files={}, train=None, validation=(), test=("rows",), label="__no_label__")
