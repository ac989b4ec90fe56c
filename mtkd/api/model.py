"""`mtkd.Model`: a trained model that can predict, evaluate and save."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtkd.api.argument_types import AnyModel
from mtkd.api.model_arguments import evaluated_model, own_directory, path_of
from mtkd.api.saved_copies import holds_copy, with_valid_scores
from mtkd.device import find_device
from mtkd.evaluation.prediction import predict_rows
from mtkd.evaluation.scoring import TaskScores, by_task
from mtkd.jobs.evaluate import evaluate as evaluate_model
from mtkd.jobs.evaluation_result import Evaluation
from mtkd.jobs.model_origin import label_limit, pretrained_encoder
from mtkd.models.digest import digest_weights
from mtkd.models.exported import ExportedModel
from mtkd.models.inference import pooled_vectors
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo, model_directory, model_file_digests, read_saved
from mtkd.output_files.remote_paths import remote_paths
from mtkd.run_record import read_run_record
from tasks.common.arguments import Device, PositiveInt, checked
from tasks.common.errors import UserError
from tasks.common.progress import progress
from tasks.data.predicted_columns import predict_in_memory
from tasks.data.rows_in_memory import texts_to_encode
from tasks.model_tasks import task_of_model, with_text_columns
from tasks.task import Task
from tasks.task_names import TaskSpec
from tasks.tokens.encoding import Encoded


class Model:
    """A model with one head per task: a refined teacher, a student, or a fine-tuned model.

    Its weights are read when they are first used.

    Args:
        source: a run or model directory, or the torch module itself.
        device: where it runs; None = the GPU if there is one.

    Raises:
        UserError: the directory does not contain an mtkd model, or there is no such device.
    """

    @checked
    def __init__(self, source: str | Path | MultiTaskModel, *, device: Device | None = None):
        self._device = find_device(device)
        self._scored: str | None = None  # the digest of the weights before the user was given the module
        self._module: MultiTaskModel | None = None
        self._named: Path | None = None
        if isinstance(source, MultiTaskModel):
            self._module = source.to(self._device)
            self._scored = digest_weights(source) if source.info.scores else None
            self._tasks, self._info = list(source.tasks.values()), source.info
        else:
            self._named = Path(source) if Path(source).exists() else model_directory(Path(source))
            self._absolute = self._named.absolute()
            saved = read_saved(self._named)
            self._tasks, self._info = saved.tasks, saved.info
            self._digests = model_file_digests(self._named)

    def __repr__(self) -> str:
        return f"<mtkd.Model {', '.join(self.tasks) or 'without tasks'}: {self.path or 'in memory'}>"

    @property
    def path(self) -> Path | None:
        """The directory that the model was read from; None for a module.

        A relative path becomes absolute when the current directory changes.
        """
        if self._named is None or self._named.absolute() == self._absolute:
            return self._named
        return self._absolute

    @property
    def module(self) -> MultiTaskModel:
        """The torch module, in evaluation mode. If you change it, all functions use the changed module.

        Raises:
            UserError: the directory no longer holds the files of this model.
        """
        module = self._loaded()
        if self._scored is None:
            self._scored = digest_weights(module)
        return module

    def _loaded(self) -> MultiTaskModel:
        """The torch module, which is loaded when it is first used."""
        if self._module is None:
            self._module = MultiTaskModel.load(self._require_files()).to(self._device)
        return self._module

    def _require_files(self) -> Path:
        """The directory of the model; raises UserError if it no longer holds the files of this model."""
        if (directory := own_directory(self)) is None:
            raise UserError(
                f"the files in {self.path} are no longer those of this model: they were replaced or removed",
                hint="give each training a directory (`out`) of its own",
            )
        return directory

    @property
    def info(self) -> ModelInfo:
        """What is saved besides weights and tasks: maximum length, pretrained encoder, recorded scores."""
        return self._info

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks that the model has heads for, by name."""
        return {task.name: task for task in self._tasks}

    @property
    def scores(self) -> dict[str, TaskScores]:
        """The validation scores at the end of training, by task (by "task/split" if a task has several)."""
        return by_task([TaskScores(**values) for values in self._info.scores.values()])

    @property
    def record(self) -> dict[str, Any]:
        """The run's record (`run.json`): settings, digests, scores of every epoch. Empty if there is none.

        Raises:
            UserError: the directory no longer holds the files of this model.
        """
        file = self._require_files() / "run.json" if self._named else None
        return read_run_record(file) if file and file.is_file() else {}

    @checked
    def to(self, device: Device | torch.device) -> Model:
        """Move the model to a device ("cpu", "cuda", "mps"); returns the model itself."""
        self._device = find_device(str(device))
        if self._module is not None:
            self._module.to(self._device)
        return self

    @checked
    def task(self, task: TaskSpec | None = None) -> Task:
        """A task that the model can predict.

        Args:
            task: the name of a task of the model, or a task file or record; None = the model's only task.

        Raises:
            UserError: not exactly one task is named, or the model has no head for it.
        """
        return task_of_model(task, self._tasks)

    @checked
    def predict(
        self,
        task: TaskSpec | None,
        rows: Any,
        *,
        columns: Sequence[str] = (),
        batch: PositiveInt = 64,
        replace: bool = False,
    ) -> Any:
        """Predict the labels of rows.

        Args:
            task: None = the model's only task.
            rows: a list of strings (tasks of one text), of tuples (one value per text column) or of dicts;
                an array or a Series of strings; a DataFrame, datasets.Dataset, pyarrow.Table or mapping of
                columns.
            columns: the text columns of `rows` in the order of the task's, if they have other names.
            batch: rows per forward pass.
            replace: replace columns of a DataFrame that have the name of an added column; otherwise such
                columns are an error.

        Returns:
            One dict per row with `prediction`, and for classification `prediction_id` and `probabilities`.
            For a pandas or polars DataFrame, a copy of it with these columns added.

        Raises:
            UserError: the model has no head for the task, a column is missing or would be replaced, or a
                value is not text. Missing values of a DataFrame or Series are read as empty texts, as in a
                CSV file, with a warning.
        """
        known_task = with_text_columns(self.task(task), columns)
        return predict_in_memory(
            lambda found: predict_rows(self._loaded(), known_task, found, batch), known_task, rows, replace
        )

    @checked
    def encode(self, texts: Any, *, batch: PositiveInt = 64) -> np.ndarray:
        """Compute the embeddings of single texts: the pooled vectors, which the task heads read.

        They are not normalised. Texts are truncated to `info.max_length` tokens.

        Args:
            texts: a list or an array of strings, or a Series.
            batch: texts per forward pass.

        Returns:
            (n, width) float32, in the order of the texts.

        Raises:
            UserError: a value is not text, or the model is an export, which gives only logits. Missing values
                of a Series are read as empty texts.
        """
        model = self._loaded()
        if isinstance(model, ExportedModel):
            raise UserError("an exported model gives logits only", hint="use the model that was exported")
        rows = texts_to_encode(texts)
        if rows is None:
            return np.zeros((0, model.encoder.width), np.float32)
        encoded = Encoded.encode(rows, model.tokeniser)
        with progress("encoding texts", len(encoded)) as advance:
            return pooled_vectors(
                model.encoder, model.text_reader, encoded, batch_size=batch, advance=advance
            )

    @checked
    @remote_paths("data", "tasks", "against", "encoder")
    def evaluate(
        self,
        data: Any = None,
        tasks: TaskSpec | None = None,
        *,
        split: str | None = None,
        limit: PositiveInt | None = None,
        batch: PositiveInt = 64,
        against: AnyModel | None = None,
        baselines: bool = False,
        encoder: str | Path | None = None,
        predictions: str | Path | None = None,
    ) -> Evaluation:
        """Score the model on labelled rows, and compare it with another one or with baselines.

        Args:
            data: "pocket", "hub", a directory, or tables such as {"rte": {"validation": frame}}; None = the
                files that the tasks name themselves.
            tasks: by default all tasks that the model has heads for.
            split: the split to score; None = validation.
            limit: the maximum number of rows per split.
            against: another model to compare with row by row: a model, a run or model directory, or a
                fine-tuned transformers checkpoint (a directory or hub name, a pipeline, or a pair of model
                and tokeniser).
            baselines: compare with the best constant prediction, a linear model on a frozen encoder, and,
                for pairs of texts, the zero-shot cosine (with a fitted threshold for two labels). They learn
                from as many labelled rows per task as the model's run (its `limit`), and at most 10,000.
            encoder: the frozen encoder of the baselines; by default the one that the teacher started from.
            predictions: a directory in which each row's prediction is written, as TASK/SPLIT.parquet.

        Returns:
            A mapping from task (or "task/split") to scores. Its attributes are `reports` (scores per class),
            the tasks that were `skipped`, `warnings`, and the `differences` from other models with their
            intervals.

        Raises:
            UserError: the model has no head for a task, there is no labelled split to score, or `baselines`
                needs `encoder`.
        """
        directory = own_directory(self)
        if baselines and encoder is None:
            encoder = pretrained_encoder(directory) if directory else self.info.base
        return evaluate_model(
            self._loaded(),
            data,
            tasks,
            split=split,
            limit=limit,
            batch_size=batch,
            device=str(self._device),
            against=evaluated_model("against", against),
            baselines=baselines,
            encoder=str(encoder) if encoder else None,
            baseline_rows=label_limit(directory) if baselines and directory else None,
            predictions=Path(predictions) if predictions else None,
            paths={"model": self.path, "against": path_of(against)},
        )

    @checked
    def save(self, directory: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model to a directory that `mtkd.load` reads; returns the directory.

        If the directory already holds a saved copy of this model, nothing is written. If the weights of
        `module` were changed, the copy has no `scores`, because these belong to other weights.

        Args:
            directory: a new or empty directory, or one that an earlier call has written.
            overwrite: replace another model that an earlier call has written there. Runs and exports are
                never replaced.

        Raises:
            UserError: the directory holds another model, a run, an export, or other files.
        """
        path, module = Path(directory), with_valid_scores(self._loaded(), self._scored)
        if not holds_copy(path, module, overwrite):
            module.save(path)
            if self.path and self.path.is_dir() and self.path.samefile(path):
                self._digests = model_file_digests(path)
                self._loaded().info = self._info = module.info
        return path
