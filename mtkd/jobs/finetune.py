"""Fine-tune: train a model on the labels of one task, choosing the learning rate by validation loss."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mtkd.jobs.common import Request, check_metric, evaluator, scores_record
from mtkd.jobs.training_data import EncodedRows, load_training_data, trainable_tasks
from mtkd.jobs.training_job import Trained, TrainingJob, Warn, ignore_warning
from mtkd.losses.objective import labels_objective
from mtkd.models.digest import digest_weights
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import digest_model
from mtkd.precision import resolve_precision
from mtkd.settings import FinetuneSettings
from mtkd.training.batches import TaskBatches
from mtkd.training.callbacks import Callback
from mtkd.training.run_directory import RunDirectory
from mtkd.training.trainer import Trainer
from tasks.batching import Collator
from tasks.errors import UserError
from tasks.files import read_json, write_json


def finetune(
    request: Request,
    settings: FinetuneSettings,
    model: Path | MultiTaskModel,
    *,
    callbacks: Sequence[Callback] = (),
    warn: Warn = ignore_warning,
) -> RunDirectory:
    """Fine-tune a model on one task, once for each learning rate, and keep the best by validation loss.

    Args:
        model: a trained model or its directory; if it has no head for the task, it gets a new one. A model
            object is not changed.
        callbacks: called during training, which begins and ends once per learning rate.
        warn: called with each warning, before training starts.

    Returns:
        The finished run; its record has the validation loss of every learning rate.

    Raises:
        UserError: invalid data, model or settings; raised before anything is written.
        Interrupted: Ctrl-C or SIGTERM, after writing a checkpoint.
    """
    settings = resolve_precision(settings, request.device, warn)
    tasks = trainable_tasks(request.tasks)
    if len(tasks) != 1:
        raise UserError(f"cannot fine-tune on {len(tasks)} tasks", expected="one task")
    check_metric(settings.train.metric, tasks)
    name = type(model).__name__ if isinstance(model, MultiTaskModel) else str(model)
    return _Finetune(
        request=request,
        settings=settings,
        tasks=tasks,
        sources={"model": name},
        callbacks=callbacks,
        warn=warn,
        start=model,
    ).run()


@dataclass(kw_only=True)
class _Finetune(TrainingJob):
    """Fine-tuning.

    Attributes:
        start: the model, or its directory, from which every learning rate starts.
    """

    name = "finetune"
    settings: FinetuneSettings
    start: Path | MultiTaskModel

    def inputs(self) -> dict[str, Any]:
        self.rows = EncodedRows(load_training_data(self.request, self.tasks))
        loaded = isinstance(self.start, MultiTaskModel)
        digest = digest_weights(self.start) if loaded else digest_model(self.start)  # type: ignore[arg-type]
        return {"data": self.rows.data.digests, "model": digest}

    def prepare(self) -> MultiTaskModel:
        assert self.rows is not None, "inputs come first"
        model = self._fresh_copy()
        model.require([task for task in self.tasks if task.head in model.tasks], self._what)
        model.keep(self.tasks)
        reader = model.reader
        self.rows = self.rows.for_reader(reader)
        data = self.rows.data
        train = self.settings.train.with_epochs(data.n_train)
        self.settings = self.settings.model_copy(update={"train": train})
        self.warnings += data.window_warnings
        self.evaluate = evaluator(data.tasks, self.rows.validation(reader), self.accelerator, train)
        self.batches = TaskBatches(data.tasks, self.rows.train(reader), Collator(reader), train)
        return model

    @property
    def _what(self) -> str:
        return f"the model {self.sources['model']}"

    def _fresh_copy(self) -> MultiTaskModel:
        if isinstance(self.start, Path):
            return MultiTaskModel.load(self.start)
        shared = {id(self.start.tokeniser): self.start.tokeniser}
        return copy.deepcopy(self.start, shared)

    def train(self) -> Trained:
        rates = list(dict.fromkeys(self.settings.learning_rates))
        results = [self._one_rate(rate) for rate in rates]
        best = min(range(len(rates)), key=lambda index: results[index]["loss"])
        directory = self._directory(rates[best])
        for kept in ("log.jsonl", "tensorboard") if self.accelerator.is_main_process else ():
            _move(directory / kept, self.request.out / kept)
        tried = {f"{rate:g}": result["loss"] for rate, result in zip(rates, results, strict=True)}
        facts = {"learning_rate": rates[best], "tried": tried}
        return Trained(
            MultiTaskModel.load(directory), results[best]["scores"], results[best]["training"], facts
        )

    def clean_up(self) -> None:
        for rate in self.settings.learning_rates:
            shutil.rmtree(self._directory(rate), ignore_errors=True)

    def _directory(self, rate: float) -> Path:
        return self.request.out / f"lr-{rate:g}"

    def _one_rate(self, rate: float) -> dict[str, Any]:
        """Train with one learning rate, or read the result if this run has finished it before.

        Returns:
            A dict with "loss", "scores" and "training".
        """
        directory = self._directory(rate)
        if (directory / "result.json").is_file():
            earlier: dict[str, Any] = read_json(directory / "result.json")
            return earlier
        train = self.settings.train.model_copy(update={"lr": rate})
        model = self._fresh_copy()
        torch.manual_seed(train.seed)
        model.keep(self.tasks)
        trainer = Trainer(
            self.accelerator,
            model,
            labels_objective(),
            self.batches,
            train,
            directory,
            evaluate=self.evaluate,
            callbacks=self.callbacks,
            label=f"fine-tuning at lr {rate:g}",
        )
        outcome = trainer.fit()
        scores = self.evaluate(model)
        result: dict[str, Any] = {
            "loss": sum(s.loss for s in scores) / len(scores),
            "scores": scores_record(scores),
            "training": vars(outcome),
        }
        if self.accelerator.is_main_process:
            model.info.scores = result["scores"]
            model.save(directory / "model")
            write_json(directory / "result.json", result)
        self.accelerator.wait_for_everyone()
        return result


def _move(source: Path, target: Path) -> None:
    """Move a file or directory, replacing the target; does nothing if it has been moved already."""
    if source.exists():
        shutil.rmtree(target, ignore_errors=True)
        os.replace(source, target)
