"""The training loop that all jobs share: steps, checkpoints and logs."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from mtkd.torch_state import seed_generators
from mtkd.train_settings import TrainSettings
from mtkd.training.callbacks import Callback, JsonLinesLog, ProgressBar, TensorBoardLog, TrainingState
from mtkd.training.checkpoint import (
    Position,
    find_checkpoint,
    newest_checkpoint,
    restore_checkpoint,
    save_checkpoint,
)
from mtkd.training.divergence import not_finite
from mtkd.training.interrupts import Interrupted
from mtkd.training.joint_decisions import JointDecisions
from mtkd.training.optimizers import set_learning_rate
from mtkd.training.parallel_module import ParallelModule
from mtkd.training.step_plan import StepPlan
from tasks.common.progress import say

StepData = TypeVar("StepData")  # what a step is computed from: its rows or batches


@dataclass(frozen=True)
class TrainingResult:
    """The result of training.

    Attributes:
        steps, epochs: how many were finished.
        best: the best value of the watched metric (`train.metric`); None if nothing was evaluated.
        history: one record per epoch.
        seconds: training time.
        kept_epoch: the epoch whose weights were kept; None = the last weights, without a choice.
    """

    steps: int
    epochs: int
    best: float | None
    history: list[dict[str, Any]]
    seconds: float
    kept_epoch: int | None = None


class TrainingLoop(ABC, Generic[StepData]):
    """Base class of everything that trains; a subclass says what the batches and the loss are.

    Args:
        train_module: the module to train, with its loss, not wrapped by accelerate.
        settings: read for `max_grad_norm`, `seed`, `metric`, `checkpoint_minutes` and `checkpoint_steps`.
        total: steps of the whole run.
        directory: where log.jsonl, tensorboard/ and checkpoints/ are written.
        callbacks: called in addition to the logs and the progress bar.
        label: what is being trained, for messages.
    """

    # Completes the hint "start over with ..." of the error for a loss that is not finite.
    divergence_hint = "a lower learning rate (`lr=...`) or a longer warm-up (`train.warmup=...`)"

    def __init__(
        self,
        accelerator: Accelerator,
        train_module: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: TrainSettings,
        total: int,
        directory: Path,
        *,
        callbacks: Sequence[Callback] = (),
        label: str = "training",
    ):
        self.accelerator = accelerator
        self.train_module = train_module
        self.optimizer = optimizer
        self.settings, self.total = settings, total
        self.directory, self.checkpoints = directory, directory / "checkpoints"
        self.position = Position()
        self.state = TrainingState(label, 0, total, metric=settings.metric)
        self._logs = (JsonLinesLog(directory), TensorBoardLog(directory))
        self._callbacks: list[Callback] = []
        if accelerator.is_main_process:
            self._callbacks = [*self._logs, ProgressBar(), *callbacks]
        self._decisions = JointDecisions(accelerator, settings.checkpoint_minutes)

    @abstractmethod
    def batches_from(self, position: Position, limit: int) -> AbstractContextManager[Iterator[StepData]]:
        """The rest of an epoch from a position, at most `limit` steps."""

    @abstractmethod
    def plan(self, step_data: StepData) -> StepPlan:
        """How to compute the loss of a step."""

    @abstractmethod
    def learning_rate(self) -> float:
        """The learning rate of the next step."""

    def parallel_module(self) -> ParallelModule:
        """The module that the training steps run, made from `train_module`."""
        return ParallelModule(self.accelerator, self.train_module, self.optimizer)

    def before_first_step(self) -> None:
        """Called before training, unless a run is resumed."""
        return

    def after_epoch(self, losses: Mapping[str, list[float]]) -> None:
        """Called after each epoch, before its checkpoint.

        Args:
            losses: for each task, the losses of the steps of this epoch.
        """
        return

    def fit(self) -> TrainingResult:
        """Train to the end, starting from the last checkpoint if there is one.

        Raises:
            UserError: the loss is no longer finite (names task and step).
            Interrupted: Ctrl-C or SIGTERM, after writing a checkpoint.
        """
        self.start()
        with self._decisions.signals.active():
            try:
                self.notify("on_train_begin")
                if not self.position.step:
                    self.before_first_step()
                # After the last step the epoch may not have been evaluated yet.
                while (self.position.step < self.total or self.position.batch) and not self.position.stopped:
                    self._epoch()
            finally:
                self.notify("on_train_end")
        self.parallel.return_to_device()
        self._decisions.sync()
        if self._decisions.received_signal:  # it came while the last checkpoint was written
            raise Interrupted(self._decisions.received_signal)
        end = self.position
        return TrainingResult(end.step, end.epoch, end.best, end.history, end.seconds)

    @property
    def resumes(self) -> bool:
        """True if `fit` will continue from a checkpoint; every process must read it."""
        return find_checkpoint(self.checkpoints) is not None

    def start(self) -> None:
        """Restore the last checkpoint if there is one, and prepare for training steps."""
        restored = restore_checkpoint(self.checkpoints, self.train_module, self.optimizer)
        self.position = restored or self.position
        self.parallel = self.parallel_module()  # after the model and the optimiser have been restored
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.accelerator.is_main_process:
            self._restore_logs()

    def _restore_logs(self) -> None:
        """Continue the logs from the checkpoint."""
        position, log = self.position, self._logs[0]
        size = position.logged if position.step else 0
        log.cut(log.size if size is None else size)
        if position.log_digest is not None and position.log_digest != log.digest:
            say(
                f"the log in {self.directory} is damaged: its records up to step {position.step} may be wrong"
            )
        for each in self._logs:
            each.restore(position.unlogged)

    def notify(self, event: str) -> None:
        """Call a method of every callback with the current state."""
        stopped = self.position.stopped and self.position.step < self.total
        self.state = replace(self.state, step=self.position.step, epoch=self.position.epoch, stopped=stopped)
        for callback in self._callbacks:
            getattr(callback, event)(self.state, self._decisions.control)

    def _epoch(self) -> None:
        """Run the rest of the current epoch, then call `after_epoch` and write a checkpoint."""
        position, started = self.position, time.monotonic()
        self.parallel.module.train()
        with self.batches_from(position, self.total - position.step) as steps:
            for step_data in steps:
                loss = self.step(step_data)
                position.batch += 1
                position.step += 1
                position.epoch_losses.setdefault(str(self.state.task), []).append(loss)
                self.notify("on_step_end")
                if self._checkpoint_due():
                    self._check_weights()
                    position.seconds += time.monotonic() - started
                    started = time.monotonic()
                    self._checkpoint()
                if self._decisions.stop:
                    break
        self._check_weights()
        position.epoch, position.batch = position.epoch + 1, 0
        self.after_epoch(position.epoch_losses)
        position.epoch_losses = {}
        position.seconds += time.monotonic() - started
        for log in self._logs if self.accelerator.is_main_process else ():
            log.flush(replace(self.state, step=position.step))
        self._decisions.sync()
        position.stopped = position.stopped or self._decisions.stop
        self._checkpoint()

    def step(self, step_data: StepData) -> float:
        """Run one optimiser step and return its loss."""
        plan = self.plan(step_data)
        self.state = replace(self.state, task=plan.task)
        # One entry per micro-batch: its part of the loss, and its part of the values of the terms.
        parts, term_values = [], []
        for number, compute in enumerate(plan.micro_batches):
            seed_generators(self.dropout_seed(number), self.accelerator.device)
            last = number == len(plan.micro_batches) - 1
            with self.parallel.micro_batch(last):
                part, values = compute()
                # Gradients are averaged over processes, but losses are divided by the items of all processes.
                (part * self.accelerator.num_processes).backward()
            parts.append(part.detach())
            term_values.append(values)
        max_norm = self.settings.max_grad_norm
        norm = parts[0].new_zeros(()) if max_norm is None else self.parallel.clip_grad_norm(max_norm)
        # The only synchronisation with the device in a step.
        on_cpu = torch.cat([torch.stack([*parts, norm.float()]), torch.stack(term_values).sum(0)]).tolist()
        step_loss, norm_value = sum(on_cpu[: len(parts)]), on_cpu[len(parts)]
        loss, *term_sums = self._decisions.sync([step_loss, *on_cpu[len(parts) + 1 :]])
        terms = {name: value for name, value in zip(plan.terms, term_sums, strict=True) if name}
        if not self.position.step and not math.isfinite(loss):
            self.check_outputs(plan)
        non_finite = [name for name, value in terms.items() if not math.isfinite(value)]
        self._check_finite(loss, self.position.step + 1, non_finite)
        self._check_finite(norm_value, self.position.step + 1)
        rate = self.learning_rate()
        set_learning_rate(self.parallel.optimizer, rate)
        self.parallel.step()
        self.state = replace(self.state, loss=loss, terms=terms, lr=rate)
        return loss

    def dropout_seed(self, micro_batch: int) -> int:
        """The seed for dropout, a function of seed, step, micro-batch and process, so no state is saved."""
        parts = (self.settings.seed, self.position.step, micro_batch, self.accelerator.process_index)
        return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _check_weights(self) -> None:
        """Gather the weights; raise UserError if the last step made them non-finite."""
        self.parallel.gather_weights()
        sizes = [weight.detach().abs().max() for weight in self.train_module.parameters() if weight.numel()]
        self._check_finite(float(torch.stack(sizes).max()), self.position.step)

    def _check_finite(self, value: float, step: int, terms: Sequence[str] = ()) -> None:
        """Raise UserError if a value of a step is not finite.

        Args:
            terms: the names of the loss terms that are not finite.
        """
        if math.isfinite(value):
            return
        added = [name for name in terms if self.is_added(name)]
        checkpoint = newest_checkpoint(self.checkpoints)
        raise not_finite(step, self.state.task, checkpoint, self.divergence_hint, terms, added)

    def check_outputs(self, plan: StepPlan) -> None:
        """Raise UserError if outputs of the model are the reason for a first loss that is not finite."""

    def is_added(self, term: str) -> bool:
        """Whether a loss term is not one of mtkd's own."""
        return False

    def _checkpoint(self) -> None:
        """Write a checkpoint, and raise Interrupted if a signal was received."""
        with self.parallel.gathered_optimizer_state():
            if self.accelerator.is_main_process:
                self.position.logged, self.position.log_digest = self._logs[0].size, self._logs[0].digest
                self.position.unlogged = self._logs[0].unlogged
                save_checkpoint(self.checkpoints, self.train_module, self.optimizer, self.position)
        self._decisions.checkpoint_written()
        self.notify("on_save")
        if self._decisions.received_signal:
            raise Interrupted(self._decisions.received_signal)

    def _checkpoint_due(self) -> bool:
        """True if a checkpoint is due inside an epoch."""
        every = self.settings.checkpoint_steps
        due = self._decisions.save or self._decisions.received_signal != 0
        return due or (every is not None and self.position.step % every == 0)
