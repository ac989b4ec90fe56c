"""The training loop that refining, distilling and fine-tuning share."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file

from mtkd.evaluation.scoring import TaskScores, watched
from mtkd.losses.objective import Objective
from mtkd.models.multitask import MultiTaskModel
from mtkd.settings import TrainSettings
from mtkd.teachers.live import TeacherSource
from mtkd.training.batches import BatchSource, MicroBatches, StepBatches
from mtkd.training.callbacks import (
    Callback,
    JsonLinesLog,
    ProgressBar,
    TensorBoardLog,
    TrainingControl,
    TrainingState,
)
from mtkd.training.checkpoint import Position, newest_checkpoint, restore_checkpoint, save_checkpoint
from mtkd.training.interrupts import Interrupted, SignalWatch
from mtkd.training.optimizers import build_optimizer, learning_rate, set_learning_rate
from mtkd.training.processes import sum_over_processes
from mtkd.training.train_step import TrainStep
from tasks.errors import UserError
from tasks.files import atomic_path
from tasks.task import Task

Evaluate = Callable[[MultiTaskModel], list[TaskScores]]


@dataclass(frozen=True)
class TrainingResult:
    """The result of training: steps, epochs, the best watched value, one record per epoch, training time."""

    steps: int
    epochs: int
    best: float | None
    history: list[dict[str, Any]]
    seconds: float


class Trainer:
    """Trains a model on batches of one task each.

    Args:
        batch_source: the source of batches.
        evaluate: computes the validation scores after each epoch. If None, training always runs to the end
            and keeps the last weights.
        directory: where log.jsonl, tensorboard/ and checkpoints/ are written.
        teacher: the source of teacher outputs; None if no loss term needs a teacher.
        callbacks: called in addition to the logs and the progress bar.
        label: what is being trained, for messages.
    """

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
        teacher: TeacherSource | None = None,
        callbacks: Sequence[Callback] = (),
        label: str = "training",
    ):
        self.accelerator, self.tasks, self.teacher = accelerator, batch_source.tasks, teacher
        self.settings, self.directory, self.evaluate = settings, directory, evaluate
        self.total = settings.steps or settings.n_epochs * len(batch_source)
        self.epoch_steps = len(batch_source)
        self.epochs = math.ceil(self.total / self.epoch_steps)
        rank, world = accelerator.process_index, accelerator.num_processes
        self.batches = MicroBatches(batch_source, objective, settings.micro_batch, rank, world)
        self.inner = TrainStep(model, objective, settings.precision == "bf16").to(accelerator.device)
        self.optimizer = build_optimizer(self.inner, settings)
        self.position = Position()
        self.state = TrainingState(label, 0, self.total, metric=settings.metric)
        self._callbacks: list[Callback] = []
        if accelerator.is_main_process:
            logs = [JsonLinesLog(directory), TensorBoardLog(directory)]
            self._callbacks = [*logs, ProgressBar(), *callbacks]
        self._control, self._signals = TrainingControl(), SignalWatch()
        self._signal, self._stop = 0, False  # the state that all processes last agreed on
        self._saved = time.monotonic()

    def fit(self) -> TrainingResult:
        """Train to the end, starting from the last checkpoint if there is one.

        Afterwards the model has the best or last weights, as `settings.keep` says.

        Raises:
            UserError: the loss is no longer finite (names task and step).
            Interrupted: Ctrl-C or SIGTERM, after writing a checkpoint.
        """
        self.start()
        with self._signals.active():
            try:
                self._notify("on_train_begin")
                while self.position.epoch < self.epochs and not self.position.stopped:
                    self._epoch()
            finally:
                self._notify("on_end")
        self.accelerator.wait_for_everyone()
        if self.settings.keep == "best" and self.position.best is not None:
            self.inner.model.load_state_dict(load_file(self._best_file))
        end = self.position
        return TrainingResult(end.step, end.epoch, end.best, end.history, end.seconds)

    @property
    def resumes(self) -> bool:
        """True if `fit` will continue from a checkpoint."""
        return newest_checkpoint(self.directory / "checkpoints") is not None

    def start(self) -> None:
        """Restore the last checkpoint if there is one, and prepare for training steps."""
        checkpoints = self.directory / "checkpoints"
        self.position = restore_checkpoint(checkpoints, self.inner, self.optimizer) or self.position
        # Restore the model and the optimiser before accelerate wraps them.
        self.step_module = self.accelerator.prepare_model(self.inner)
        self.step_optimizer = self.accelerator.prepare_optimizer(self.optimizer, device_placement=False)
        self.directory.mkdir(parents=True, exist_ok=True)

    @property
    def _best_file(self) -> Path:
        return self.directory / "checkpoints" / "best.safetensors"

    def _notify(self, event: str) -> None:
        """Call a method of every callback with the current state."""
        stopped = self.position.stopped and self.position.step < self.total
        self.state = replace(self.state, step=self.position.step, epoch=self.position.epoch, stopped=stopped)
        for callback in self._callbacks:
            getattr(callback, event)(self.state, self._control)

    def _epoch(self) -> None:
        """Run the rest of the current epoch, then evaluate and write a checkpoint."""
        position, started = self.position, time.monotonic()
        losses: dict[str, list[float]] = {}
        self.inner.train()
        task = next(iter(self.tasks.values()))
        left = self.total - position.step
        with self.batches.epoch(position.epoch, position.batch, position.batch_source, left) as steps:
            for batches in steps:
                task, loss = batches.task, self.step(batches)
                position.batch += 1
                position.step += 1
                position.batch_source = batches.drawn.cursor
                losses.setdefault(task.name, []).append(loss)
                self._notify("on_step")
                if self._checkpoint_due():
                    self._check_weights(task)
                    position.seconds += time.monotonic() - started
                    started = time.monotonic()
                    self._checkpoint()
                if self._stopping:
                    break
        self._check_weights(task)
        position.epoch, position.batch = position.epoch + 1, 0
        self._evaluate_epoch(losses)
        position.seconds += time.monotonic() - started
        self._synchronise()
        position.stopped = position.stopped or self._stopping
        self._checkpoint()

    def step(self, batches: StepBatches) -> float:
        """Run one optimiser step and return its loss."""
        batches.drawn.before()
        task, done = batches.task, self.position.step / self.total
        num_items = sum_over_processes(self.accelerator, batches.num_items)
        needed = self.inner.objective.needs(done)[1]
        losses, terms = [], []
        shares = zip(batches.batches, batches.weights, batches.batch_items, strict=True)
        for number, (cpu_batch, weight, batch_items) in enumerate(shares):
            batch = cpu_batch.to(self.accelerator.device)
            torch.manual_seed(self._seed(number))
            signals = self.teacher.signal(task, batch, needed) if self.teacher else None
            last = number == len(batches.batches) - 1
            with self.accelerator.no_sync(self.step_module) if not last else contextlib.nullcontext():
                share_loss, values = self.step_module(task, batch, signals, num_items, done, batch_items)
                # Gradients are averaged over processes, but losses are divided by the items of all processes.
                self.accelerator.backward(share_loss * weight * self.accelerator.num_processes)
            losses.append(share_loss.detach() * weight)
            terms.append(values * weight)
        norm = losses[0].new_zeros(())
        if self.settings.clip is not None:
            norm = self.accelerator.clip_grad_norm_(self.inner.parameters(), self.settings.clip)  # type: ignore[assignment]
        # The only synchronisation with the device in a step.
        values_on_cpu = torch.cat([torch.stack([*losses, norm.float()]), torch.stack(terms).sum(0)]).tolist()
        step_loss, norm_value = sum(values_on_cpu[: len(losses)]), values_on_cpu[len(losses)]
        loss, *each = self._synchronise([step_loss, *values_on_cpu[len(losses) + 1 :]])
        self._check_finite(loss, task)
        self._check_finite(norm_value, task)
        rate = learning_rate(
            self.settings, self.position.step, self.total, self.inner.objective.slow_build.share
        )
        set_learning_rate(self.optimizer, rate)
        self.step_optimizer.step()
        self.step_optimizer.zero_grad()
        named = zip(self.inner.objective.terms, each, num_items, strict=True)
        self.state = replace(
            self.state,
            task=task.name,
            loss=loss,
            terms={name: value for name, value, count in named if count},
            lr=rate,
        )
        return loss

    def _seed(self, micro: int) -> int:
        """The seed for dropout, a function of seed, step, micro-batch and process, so no state is saved."""
        parts = (self.settings.seed, self.position.step, micro, self.accelerator.process_index)
        return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _synchronise(self, losses: Sequence[float] = ()) -> list[float]:
        """Sum numbers over all processes, and share signals and stop requests between them."""
        number = self._signals.number
        flags = [number == signal.SIGINT, number == signal.SIGTERM, self._control.should_training_stop]
        numbers = [*map(float, flags), *losses]
        interrupt, terminate, stop, *sums = sum_over_processes(self.accelerator, numbers)
        self._signal = signal.SIGTERM if terminate else signal.SIGINT if interrupt else 0
        self._stop = stop > 0
        return sums

    @property
    def _stopping(self) -> bool:
        """True if a callback requested to stop."""
        single = self.accelerator.num_processes == 1
        return self._control.should_training_stop if single else self._stop

    def _check_weights(self, task: Task) -> None:
        """Raise UserError if the last step made weights non-finite, before they are saved."""
        sizes = [weight.detach().abs().max() for weight in self.inner.parameters() if weight.numel()]
        self._check_finite(float(torch.stack(sizes).max()), task)

    def _check_finite(self, value: float, task: Task) -> None:
        if math.isfinite(value):
            return
        kept = sorted((self.directory / "checkpoints").glob("step-*"))
        where = f"the last good checkpoint is {kept[-1]}" if kept else "there is no checkpoint yet"
        raise UserError(
            f"loss or weights are not finite at step {self.position.step + 1} (task {task.name!r}); {where}",
            hint="start over (`overwrite=True`) with a lower learning rate (`train.lr=...` or "
            "learning_rates=[...]) or more warm-up",
        )

    def _evaluate_epoch(self, losses: Mapping[str, list[float]]) -> None:
        """Evaluate after an epoch, keep the best weights, and decide whether to stop early."""
        position = self.position
        record: dict[str, Any] = {
            "epoch": position.epoch,
            "train_loss": {task: float(np.mean(values)) for task, values in losses.items()},
        }
        position.history.append(record)
        building = not self.inner.objective.slow_build.done(position.step / self.total)
        if self.evaluate is None or building:  # the heads are not trained yet
            return
        scores = self.evaluate(self.inner.model)
        value, better = watched(self.settings.metric, scores)
        if position.best is None or better(value, position.best):
            position.best, position.bad_epochs = value, 0
            if self.settings.keep == "best" and self.accelerator.is_main_process:
                weights = {k: v.cpu().contiguous() for k, v in self.inner.model.state_dict().items()}
                with atomic_path(self._best_file) as temporary:
                    save_file(weights, temporary)
        else:
            position.bad_epochs += 1
        patience = self.settings.patience
        position.stopped = patience is not None and position.bad_epochs >= patience
        record[self.settings.metric] = value
        record["scores"] = {f"{s.task}/{s.split}": s.primary for s in scores}
        self.state = replace(self.state, value=value, scores=record["scores"])
        self._notify("on_evaluate")

    def _checkpoint(self) -> None:
        """Write a checkpoint, and raise Interrupted if a signal was received."""
        if self.accelerator.is_main_process:
            save_checkpoint(self.directory / "checkpoints", self.inner, self.optimizer, self.position)
        self._saved = time.monotonic()
        self._notify("on_checkpoint")
        if self._signal:
            raise Interrupted(self._signal)

    def _checkpoint_due(self) -> bool:
        """True if a checkpoint is due inside an epoch."""
        every = self.settings.checkpoint_steps
        late = time.monotonic() - self._saved > 60 * self.settings.checkpoint_minutes
        return bool(self._signal) or late or (every is not None and self.position.step % every == 0)
