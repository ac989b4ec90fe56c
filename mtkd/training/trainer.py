"""Training on batches of tasks, which refining, distilling and fine-tuning share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor

from mtkd.evaluation.scoring import TaskScores, is_better, selection_value
from mtkd.losses.loss_term import LossTerm
from mtkd.losses.objective import Objective
from mtkd.losses.term_settings import value_at
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.tied_weights import tensors_to_save, with_tied_names
from mtkd.teachers.teacher_sources import TeacherSource
from mtkd.time_trial import STEPS, Trial, current_trial
from mtkd.train_settings import TrainSettings
from mtkd.training.batches import BatchSource, MicroBatches, StepBatches
from mtkd.training.callbacks import Callback
from mtkd.training.checkpoint import Position
from mtkd.training.divergence import check_encoder
from mtkd.training.loop import TrainingLoop, TrainingResult
from mtkd.training.optimizers import build_optimizer, learning_rate
from mtkd.training.parallel_module import ParallelModule
from mtkd.training.processes import from_main_process, sum_over_processes, uses_fsdp
from mtkd.training.step_plan import StepPlan
from mtkd.training.train_step import TrainStep
from tasks.common.digests import damage_of, quick_digest
from tasks.common.errors import UserError
from tasks.common.files import atomic_path, directory_for
from tasks.task import Task
from tasks.tokens.batching import Batch

Evaluate = Callable[[MultiTaskModel], list[TaskScores]]


class Trainer(TrainingLoop[StepBatches]):
    """Trains a model on batches of one task each.

    Args:
        batch_source: the source of batches.
        evaluate: computes the validation scores after each epoch. If None, training always runs to the end
            and keeps the last weights.
        evaluate_start: computes the scores before training, as those of epoch 0, whose weights are kept if no
            epoch is better. None = the start is not evaluated, because its heads are not trained yet.
        teacher: the source of teacher outputs; None if no loss term needs a teacher.
        directory, callbacks, label: see `TrainingLoop`.
    """

    train_module: TrainStep

    def __init__(
        self,
        accelerator: Accelerator,
        model: MultiTaskModel,
        objective: Objective,
        batch_source: BatchSource,
        settings: TrainSettings,
        directory: Path,
        *,
        evaluate: Evaluate | None,
        evaluate_start: Evaluate | None = None,
        teacher: TeacherSource | None = None,
        callbacks: Sequence[Callback] = (),
        label: str = "training",
    ):
        self.tasks, self.teacher = batch_source.tasks, teacher
        self.evaluate, self.evaluate_start = evaluate, evaluate_start
        rank, world = accelerator.process_index, accelerator.num_processes
        pin = accelerator.device.type == "cuda"
        self.batches = MicroBatches(batch_source, objective, settings.micro_batch_size, rank, world, pin)
        train_module = TrainStep(model, objective, settings.precision == "bf16").to(accelerator.device)
        optimizer = build_optimizer(train_module, settings)
        total = settings.steps or batch_source.total(settings.n_epochs)
        self.n_epochs = math.ceil(total / batch_source.total(1)) if settings.steps else settings.n_epochs
        super().__init__(
            accelerator, train_module, optimizer, settings, total, directory, callbacks=callbacks, label=label
        )

    def fit(self) -> TrainingResult:
        """Train to the end; see `TrainingLoop.fit`.

        Afterwards the model has the best or last weights, as `settings.keep` says, and no process needs the
        checkpoints any more.
        """
        if trial := current_trial():
            return self._time_few_steps(trial)
        result = super().fit()
        if self.settings.keep == "best" and result.best is not None:
            from_main_process(self._check_best)  # the only process that knows the digest
            model = self.train_module.model
            model.load_state_dict(with_tied_names(model, load_file(self._best_file)))
            self.accelerator.wait_for_everyone()
            values = {record["epoch"]: record.get(self.settings.metric) for record in result.history}
            kept = next((epoch for epoch, value in values.items() if value == result.best), None)
            return replace(result, kept_epoch=kept)
        return result

    def _check_best(self) -> None:
        """Raise UserError if the weights of the best epoch are not those that were written."""
        best = self._best_file
        if not (best.is_file() and quick_digest(best) == self.position.best_digest):
            raise UserError(
                f"the file with the weights of the best epoch, {best}, {damage_of(best)}",
                hint="start over (`overwrite=True`)",
            )

    def _time_few_steps(self, trial: Trial) -> TrainingResult:
        """Time a few steps and what follows an epoch, and add the estimate for the others to the trial."""
        self.start()
        self.notify("on_train_begin")
        self.before_first_step()
        self.parallel.module.train()
        started = time.monotonic()
        n_steps = min(self.total, 1 + STEPS)
        while self.position.step < n_steps:
            with self.batches_from(self.position, n_steps - self.position.step) as steps:
                for step_batches in steps:
                    self.step(step_batches)
                    if not self.position.step:
                        started = time.monotonic()  # the first step is slower than others
                    self.position.step += 1
            self.position.epoch += 1
        remaining = self.total - self.position.step
        trial.skipped += remaining * (time.monotonic() - started) / max(1, self.position.step - 1)
        skipped_by_steps = trial.skipped
        self.after_epoch({})  # the first time, modules may be imported, so this one is not counted
        trial.skipped, started = skipped_by_steps, time.monotonic()
        self.after_epoch({})
        # An evaluation takes the time that it took here, and that of the batches that it left out.
        epoch_seconds = time.monotonic() - started + trial.skipped - skipped_by_steps
        trial.skipped += (self.n_epochs - 1) * epoch_seconds
        self.notify("on_train_end")
        return TrainingResult(self.total, self.n_epochs, None, [], 0.0)

    def parallel_module(self) -> ParallelModule:
        """The module that the training steps run, sharded if accelerate was told to use FSDP."""
        if not uses_fsdp():
            return super().parallel_module()
        from mtkd.training.sharded_module import ShardedModule

        return ShardedModule(self.accelerator, self.train_module, self.optimizer)

    @property
    def _best_file(self) -> Path:
        return self.checkpoints / "best.safetensors"

    @property
    def _progress(self) -> float:
        """The fraction of the steps that are done."""
        return self.position.step / self.total

    def batches_from(self, position: Position, limit: int) -> AbstractContextManager[Iterator[StepBatches]]:
        """The rest of an epoch, prepared by a thread."""
        return self.batches.epoch(position.epoch, position.batch, position.batch_source, limit)

    def plan(self, step_batches: StepBatches) -> StepPlan:
        """The objective for each micro-batch."""
        step_batches.drawn.on_step_start()
        self.position.batch_source = step_batches.drawn.cursor
        num_items = sum_over_processes(self.accelerator, step_batches.num_items)
        micro_batches = [
            partial(self._loss, step_batches.task, num_items, *part)
            for part in zip(step_batches.batches, step_batches.weights, step_batches.batch_items, strict=True)
        ]
        return StepPlan(step_batches.task.name, micro_batches, self._logged_terms(num_items))

    def check_outputs(self, plan: StepPlan) -> None:
        check_encoder(self.train_module.model.encoder, plan)

    def is_added(self, term: str) -> bool:
        return not type(self.train_module.objective.terms[term]).__module__.startswith("mtkd.")

    def _logged_terms(self, num_items: list[int]) -> list[str | None]:
        """The names of the loss terms; None for those that this step does not compute.

        Args:
            num_items: for each term, its number of items in this step.
        """
        objective, progress = self.train_module.objective, self._progress
        build = objective.slow_build
        layers = None if build.done(progress) else build.active_layers(progress)
        names: list[str | None] = []
        for (name, term), count in zip(objective.terms.items(), num_items, strict=True):
            assert isinstance(term, LossTerm)
            is_on = value_at(term.weight, progress) and (layers is None or term.active_pairs(layers))
            names.append(name if count and is_on else None)
        return names

    def _loss(
        self, task: Task, num_items: list[int], cpu_batch: Batch, weight: float, batch_items: list[int]
    ) -> tuple[Tensor, Tensor]:
        """The objective for one micro-batch, and the value of each of its terms."""
        batch, progress = cpu_batch.to(self.accelerator.device), self._progress
        teacher_outputs = None
        if self.teacher:
            teacher_outputs = self.teacher.outputs(
                task, batch, self.train_module.objective.needs(progress)[1]
            )
        loss, values = self.parallel.module(task, batch, teacher_outputs, num_items, progress, batch_items)
        return loss * weight, values * weight

    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        build_fraction = self.train_module.objective.slow_build.fraction
        return learning_rate(self.settings, self.position.step, self.total, build_fraction)

    def before_first_step(self) -> None:
        """Evaluate the start of training, if its heads are trained already."""
        if self.evaluate_start is None:
            return
        record: dict[str, Any] = {"epoch": 0}
        self.position.history.append(record)
        self._evaluate(self.evaluate_start, record)

    def after_epoch(self, losses: Mapping[str, list[float]]) -> None:
        """Evaluate after an epoch, unless the heads are not trained yet."""
        record: dict[str, Any] = {
            "epoch": self.position.epoch,
            "train_loss": {task: float(np.mean(values)) for task, values in losses.items()},
        }
        self.position.history.append(record)
        if self.evaluate is not None and self.train_module.objective.slow_build.done(self._progress):
            self._evaluate(self.evaluate, record)

    def _evaluate(self, evaluate: Evaluate, record: dict[str, Any]) -> None:
        """Evaluate, keep the best weights, and decide whether to stop early.

        Args:
            record: the record of the epoch, to which the scores are added.
        """
        position = self.position
        with self.parallel.on_device():
            scores = evaluate(self.train_module.model)
        value = selection_value(self.settings.metric, scores)
        if position.best is None or is_better(self.settings.metric, value, position.best):
            position.best, position.bad_epochs = value, 0
            if self.settings.keep == "best" and self.accelerator.is_main_process:
                with atomic_path(self._best_file) as temporary, directory_for(temporary) as file:
                    save_file(tensors_to_save(self.train_module.model), file)
                position.best_digest = quick_digest(self._best_file)
        else:
            position.bad_epochs += 1
        patience = self.settings.patience
        position.stopped = patience is not None and position.bad_epochs >= patience
        record[self.settings.metric] = value
        record["scores"] = {f"{s.task}/{s.split}": s.primary for s in scores}
        self.state = replace(self.state, value=value, scores=record["scores"])
        self.notify("on_evaluate")
