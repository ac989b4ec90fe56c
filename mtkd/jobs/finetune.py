"""Fine-tune: train a model on one task; the validation rows choose the learning rate and number of epochs."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from mtkd.evaluation.scoring import TaskScores, is_better, selection_value, write_predictions
from mtkd.jobs.class_weights import check_class_weights, weigh_classes
from mtkd.jobs.request import Request, refuse_unlabelled_settings
from mtkd.jobs.training_data import EncodedRows, load_training_data, trainable_tasks
from mtkd.jobs.training_job import JobResult, TrainingJob, Warn, ignore_warning
from mtkd.jobs.validation_scores import check_metric, evaluator, scores_record
from mtkd.losses.objective import labels_objective
from mtkd.model_files import refuse_export
from mtkd.models.digest import digest_weights
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import digest_model
from mtkd.precision import resolve_precision
from mtkd.run_record import StageResult, TrialResult
from mtkd.settings import FinetuneSettings
from mtkd.torch_state import trains
from mtkd.train_settings import TrainSettings
from mtkd.training.batches import TaskBatches
from mtkd.training.callbacks import Callback
from mtkd.training.run_directory import PREDICTIONS, RunDirectory
from mtkd.training.trainer import Trainer
from tasks.common.errors import UserError, counted, shorten
from tasks.common.files import move_files
from tasks.common.records import read_record, write_record
from tasks.tokens.batching import Collator


@trains
def finetune(
    request: Request,
    settings: FinetuneSettings,
    model: Path | MultiTaskModel,
    *,
    callbacks: Sequence[Callback] = (),
    warn: Warn = ignore_warning,
) -> RunDirectory:
    """Fine-tune a model on one task, and keep the trial that is best by `train.metric`.

    There is one trial for each learning rate and number of epochs. A model that has already been trained on
    the task is scored first, and its own weights are kept if no epoch is better.

    Args:
        model: a trained model or its directory; if it has no head for the task, it gets a new one. A model
            object is not changed.
        callbacks: called during training, which starts and ends once per trial.
        warn: called with each warning: before training, and about the scores after it.

    Returns:
        The finished run; its record has the watched value of every learning rate and number of epochs.

    Raises:
        UserError: invalid data, model or settings; raised before anything is written.
        Interrupted: Ctrl-C or SIGTERM, after writing a checkpoint.
    """
    settings = resolve_precision(settings, request.device, warn)
    tasks = trainable_tasks(request.tasks, request.data)
    if len(tasks) != 1:
        first, second = (task.name for task in tasks[:2])
        raise UserError(
            f"cannot fine-tune on {len(tasks)} tasks ({shorten(task.name for task in tasks)})",
            expected="one task",
            hint=f"fine-tune once for each (`task={first!r}`, then `task={second!r}`); `mtkd.refine` and "
            "`mtkd.distill` train one model on several tasks",
        )
    if isinstance(model, Path):
        refuse_export(model, "fine-tuned")
    check_metric(settings.train.metric, tasks)
    refuse_unlabelled_settings(settings.train, "mtkd finetune")
    check_class_weights(settings.train, tasks, labels_objective())
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
    """The training job of `finetune`.

    Attributes:
        start: the model, or its directory, from which every trial starts.
    """

    command = "finetune"
    settings: FinetuneSettings
    start: Path | MultiTaskModel
    _start_scores: list[TaskScores] | None = field(default=None, init=False)

    def inputs(self) -> dict[str, Any]:
        data = load_training_data(self.request, self.tasks)
        data.require_labels("mtkd finetune")
        self.rows = EncodedRows(data)
        loaded = isinstance(self.start, MultiTaskModel)
        digest = digest_weights(self.start) if loaded else digest_model(self.start)  # type: ignore[arg-type]
        return {"data": self.rows.data.digests, "model": digest}

    def prepare(self) -> MultiTaskModel:
        model = self._fresh_copy()
        model.require_heads([task for task in self.tasks if task.head in model.tasks], self._description)
        model.set_tasks(self.tasks)
        reader = model.reader
        self.rows = self.rows.for_reader(reader)
        data = self.rows.data
        self.objective = weigh_classes(labels_objective(), self.settings.train, data)
        train = self.settings.train.with_epochs(data.n_train)
        self.settings = self.settings.model_copy(update={"train": train})
        self.warnings += [*data.warnings, *data.window_warnings, *self.rows.cut_warnings(reader)]
        self.evaluate = evaluator(data.tasks, self.rows.validation(reader), self.accelerator, train)
        self.batches = TaskBatches(data.tasks, self.rows.train(reader), Collator(reader), train)
        return model

    @property
    def _description(self) -> str:
        return f"the model {self.sources['model']}"

    def _fresh_copy(self) -> MultiTaskModel:
        """A copy of the model before training, with the requested `max_length`."""
        if isinstance(self.start, Path):
            model = MultiTaskModel.load(self.start)
        else:
            model = copy.deepcopy(self.start, {id(self.start.tokeniser): self.start.tokeniser})
        model.set_max_length(self.settings.max_length or model.info.max_length)
        return model

    def train(self) -> JobResult:
        trials = self._trials()
        results = [self._run_trial(trial) for trial in trials]
        best = 0  # the first of equally good trials
        for index, result in enumerate(results):
            if is_better(self.settings.train.metric, result["value"], results[best]["value"]):
                best = index
        directory = self._directory(trials[best])
        if self.accelerator.is_main_process:
            for name in ("log.jsonl", "tensorboard", PREDICTIONS):
                if (directory / name).exists():  # otherwise an interrupted call has already moved it
                    move_files(directory / name, self.request.out / name)
        tried = {self._name(trial): result["value"] for trial, result in zip(trials, results, strict=True)}
        chosen = {"learning_rate": trials[best].peak_lr, "tried": tried}
        scores = [TaskScores(**values) for values in results[best]["scores"].values()]
        return JobResult(MultiTaskModel.load(directory), scores, dict(results[best]["training"]), chosen)

    def _trials(self) -> list[TrainSettings]:
        """The settings to try: every learning rate with every number of epochs."""
        settings = self.settings
        counts = settings.epoch_counts or [settings.train.n_epochs]
        pairs = dict.fromkeys((rate, count) for rate in settings.learning_rates for count in counts)
        return [settings.train.model_copy(update={"lr": rate, "epochs": count}) for rate, count in pairs]

    def _name(self, trial: TrainSettings) -> str:
        """The name of a trial, such as "1e-05, 3 epochs"."""
        rate = rate_names(self.settings.learning_rates)[trial.peak_lr]
        return rate + (f", {counted(trial.n_epochs, 'epoch')}" if self.settings.epoch_counts else "")

    def _directory(self, trial: TrainSettings) -> Path:
        return self.request.out / f"lr-{self._name(trial).replace(', ', '-').replace(' ', '-')}"

    def _run_trial(self, train: TrainSettings) -> TrialResult:
        """Train with one learning rate and number of epochs, or read the result of a finished trial."""
        directory = self._directory(train)
        if (directory / "result.json").is_file():
            return read_record(directory / "result.json", TrialResult)
        model = self._fresh_copy()
        is_trained = bool(model.info.scores) and self.tasks[0].head in model.tasks
        torch.manual_seed(train.seed)
        model.set_tasks(self.tasks)
        trainer = Trainer(
            self.accelerator,
            model,
            self.objective,
            self.batches,
            train,
            directory,
            evaluate=self.evaluate,
            evaluate_start=self._score_start if is_trained else None,
            callbacks=self.callbacks,
            label=f"fine-tuning at lr {self._name(train)}",
        )
        outcome = trainer.fit()
        validation = self.rows.validation(model.reader)
        scores = evaluator(self.rows.data.tasks, validation, self.accelerator, train, final=True)(model)
        result: TrialResult = {
            "value": selection_value(train.metric, scores),
            "scores": scores_record(scores),
            "training": cast(StageResult, vars(outcome)),
        }
        if self.accelerator.is_main_process:
            model.info.scores = result["scores"]
            model.save(directory / "model")
            write_predictions(directory / PREDICTIONS, scores)
            write_record(directory / "result.json", result)
        self.accelerator.wait_for_everyone()
        return result

    def _score_start(self, model: MultiTaskModel) -> list[TaskScores]:
        """The scores of the model before training, computed once for all trials."""
        if self._start_scores is None:
            self._start_scores = self.evaluate(model)
        return self._start_scores


def rate_names(rates: Sequence[float]) -> dict[float, str]:
    """The name of each learning rate, rounded to six digits unless another rate would have the same name."""
    short = {rate: f"{rate:g}" for rate in rates}
    counts = Counter(short.values())
    return {rate: name if counts[name] == 1 else repr(rate) for rate, name in short.items()}
