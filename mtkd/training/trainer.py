"""The only training loop: refining, distilling and fine-tuning all run here.

Longer than other files: the loop, its checkpoints and its arithmetic over processes are read together.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mtkd.device import keep_memory
from mtkd.evaluation.scoring import TaskScores, watched
from mtkd.losses.objective import Objective
from mtkd.models.multitask import MultiTaskModel
from mtkd.outputs import ModelOutput
from mtkd.settings import TrainSettings
from mtkd.teachers.live import TeacherSource
from mtkd.training.batches import BatchSource
from mtkd.training.checkpoint import Position, restore_checkpoint, save_checkpoint
from mtkd.training.optimizers import build_optimizer, learning_rate, set_learning_rate
from mtkd.training.run_directory import Log
from tasks.batching import Batch
from tasks.errors import UserError
from tasks.files import atomic_path
from tasks.progress import progress
from tasks.sampler import BatchIndices, shard_indices
from tasks.task import Task

Evaluate = Callable[[MultiTaskModel], list[TaskScores]]
_LOG_EVERY = 20


class Interrupted(Exception):
    """Ctrl-C: a checkpoint has been written; the same command goes on from there."""


@dataclass(frozen=True)
class TrainingResult:
    """How a training run ended: steps, epochs, one record an epoch, seconds of training."""

    steps: int
    epochs: int
    best: float | None
    history: list[dict[str, Any]]
    seconds: float


class TrainStep(nn.Module):
    """Student and objective as one module, so that one wrapper serves all their weights."""

    def __init__(self, model: MultiTaskModel, objective: Objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(
        self, task: Task, batch: Batch, teacher: ModelOutput | None, num_items: list[int], progress: float
    ) -> tuple[Tensor, Tensor]:
        """The objective's share from one micro-batch; see Objective.forward."""
        student = self.model(batch.inputs, task.head, self.objective.needs(progress)[0])
        return self.objective(task, batch, student, teacher, num_items, progress)


def make_accelerator(settings: TrainSettings) -> Accelerator:
    """The accelerator of a run: device, precision, processes. Heads that idle in a step are allowed for."""
    keep_memory()
    AcceleratorState._reset_state()  # a process may run several stages, each with its own precision
    return Accelerator(
        mixed_precision="bf16" if settings.precision == "bf16" else "no",
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )


class Trainer:
    """Trains a model on batches of one task each.

    Args:
        batch_source: where the batches come from.
        evaluate: the validation scores of the model, called after each epoch; None = nothing to judge by, so
            that training runs to its end and ends with its last weights.
        directory: where log.jsonl, tensorboard/ and checkpoints/ go.
        teacher: None where no term needs one.
        label: how to name this job in the progress bar.
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
        label: str = "training",
    ):
        self.accelerator, self.batch_source, self.tasks = accelerator, batch_source, batch_source.tasks
        self.settings, self.directory, self.evaluate, self.label = settings, directory, evaluate, label
        self.teacher = teacher
        self.total = settings.steps or settings.epochs * len(batch_source)
        self.epochs = math.ceil(self.total / len(batch_source))
        self.inner = TrainStep(model, objective).to(accelerator.device)
        self.optimizer = build_optimizer(self.inner, settings)
        self.position = Position()
        self._stop = False
        self._saved = time.monotonic()

    def fit(self) -> TrainingResult:
        """Train to the end, from the last checkpoint if there is one; the model has the weights to keep.

        Raises:
            UserError: the loss stopped being finite (names task and step).
            Interrupted: Ctrl-C, after writing a checkpoint.
        """
        self.start()
        previous = signal.signal(signal.SIGINT, self._on_interrupt)
        show = self.accelerator.is_main_process
        try:
            with progress(
                self.label, self.total, done=self.position.step, unit="steps", show=show
            ) as advance:
                while self.position.epoch < self.epochs and not self.position.stopped:
                    self._epoch(advance)
        finally:
            signal.signal(signal.SIGINT, previous)
            self.log.close()
        self.accelerator.wait_for_everyone()
        if self.settings.keep == "best" and self.evaluate:
            self.inner.model.load_state_dict(load_file(self._best_file))
        end = self.position
        return TrainingResult(end.step, end.epoch, end.best, end.history, end.seconds)

    def start(self) -> None:
        """Go to the last checkpoint, if there is one, and get ready for steps."""
        checkpoints = self.directory / "checkpoints"
        self.position = restore_checkpoint(checkpoints, self.inner, self.optimizer) or self.position
        self.batch_source.cursor = self.position.batch_source
        # Accelerate wraps model and optimiser only now that they are restored.
        self.step_module = self.accelerator.prepare_model(self.inner)
        self.step_optimizer = self.accelerator.prepare_optimizer(self.optimizer, device_placement=False)
        self.log = Log(self.directory, self.position.step, self.accelerator.is_main_process)

    @property
    def _best_file(self) -> Path:
        return self.directory / "checkpoints" / "best.safetensors"

    def _on_interrupt(self, *_: Any) -> None:
        self._stop = True

    def _epoch(self, advance: Callable[..., None]) -> None:
        """Run the rest of the current epoch, then evaluate and write a checkpoint."""
        started = time.monotonic()
        losses: dict[str, list[float]] = {}
        self.inner.train()
        task = next(iter(self.tasks.values()))
        for draw in self.batch_source.epoch(self.position.epoch, self.position.batch):
            if self.position.step == self.total:
                break
            task, loss = self.tasks[draw.task], self.step(draw)
            self.position.batch += 1
            self.position.step += 1
            losses.setdefault(draw.task, []).append(loss)
            advance(1, f"{draw.task} loss {loss:.4f}")
            if self._due():
                self._check_weights(task)
                self.position.seconds += time.monotonic() - started
                started = time.monotonic()
                self._checkpoint()
                if self._stop:
                    raise Interrupted
        self._check_weights(task)
        self.position.epoch, self.position.batch = self.position.epoch + 1, 0
        self._judge(losses, started)
        self._checkpoint()
        if self._stop:
            raise Interrupted

    def step(self, draw: BatchIndices) -> float:
        """One optimiser step on one draw, in as many micro-batches as needed; its loss."""
        task = self.tasks[draw.task]
        parts = self._parts(draw)
        batches = [self.batch_source.batch(draw.task, part).to(self.accelerator.device) for part, _ in parts]
        num_items = self._count_items(task, batches, [weight for _, weight in parts])
        loss, terms = 0.0, torch.zeros(len(num_items))
        done = self.position.step / self.total
        needed = self.inner.objective.needs(done)[1]
        for number, (batch, (_, weight)) in enumerate(zip(batches, parts, strict=True)):
            torch.manual_seed(self._seed(number))
            signals = self.teacher.signal(task, batch, needed) if self.teacher else None
            last = number == len(batches) - 1
            with self.accelerator.no_sync(self.step_module) if not last else contextlib.nullcontext():
                share_loss, values = self.step_module(task, batch, signals, num_items, done)
                # Gradients are averaged over the processes, and the items are counted over all of them.
                self.accelerator.backward(share_loss * weight * self.accelerator.num_processes)
            loss += float(share_loss.detach()) * weight
            terms += values.float().cpu() * weight
        loss, *each = self._over_processes([loss, *terms.tolist()])
        self._check(loss, task)
        held = self.inner.objective.slow_build.share
        rate = learning_rate(self.settings, self.position.step, self.total, held)
        set_learning_rate(self.optimizer, rate)
        if self.settings.clip is not None:
            norm = self.accelerator.clip_grad_norm_(self.inner.parameters(), self.settings.clip)
            self._check(float(norm), task)
        self.step_optimizer.step()
        self.step_optimizer.zero_grad()
        if self.position.step % _LOG_EVERY == 0:
            named = {
                f"loss/{name}": value for name, value in zip(self.inner.objective.terms, each, strict=True)
            }
            self.log.write(self.position.step + 1, task=task.name, loss=loss, lr=rate, **named)
        return loss

    def _parts(self, draw: BatchIndices) -> list[tuple[np.ndarray, float]]:
        """This process's rows of a draw, in micro-batches, each with weight 1; where a process has no row
        left it runs one row with weight 0, so that all processes take part in every exchange.
        """
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        groups = self.batch_source.groups(draw.task)
        mine = shard_indices(draw, rank, world, groups)
        micro = self.settings.micro_batch
        count = math.ceil(math.ceil(len(draw.indices) / world) / micro) if micro else 1
        parts = (
            [shard_indices(BatchIndices(draw.task, mine), part, count, groups) for part in range(count)]
            if len(mine)
            else []
        )
        found = [(part, 1.0) for part in parts if len(part)]
        return found + [(draw.indices[:1], 0.0)] * (count - len(found))

    def _count_items(self, task: Task, batches: list[Batch], weights: list[float]) -> list[int]:
        """The number of items of each term over all micro-batches and processes."""
        objective = self.inner.objective
        counted = [objective.num_items(task, b) for b, weight in zip(batches, weights, strict=True) if weight]
        sums = [sum(values) for values in zip(*counted, strict=True)] or [0] * len(objective.terms)
        if self.accelerator.num_processes == 1:
            return sums
        total = self.accelerator.reduce(torch.tensor(sums, device=self.accelerator.device), "sum")
        return [int(value) for value in total]  # type: ignore[union-attr]

    def _seed(self, micro: int) -> int:
        """Dropout's seed: a function of (seed, step, micro-batch, process), so that no state need be kept."""
        parts = (self.settings.seed, self.position.step, micro, self.accelerator.process_index)
        return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _over_processes(self, losses: list[float]) -> list[float]:
        """The sums over all processes; a Ctrl-C that one of them got is known to all of them after it."""
        if self.accelerator.num_processes == 1:
            return losses
        mine = torch.tensor([float(self._stop), *losses], device=self.accelerator.device)
        stop, *sums = self.accelerator.reduce(mine, "sum").tolist()  # type: ignore[union-attr]
        self._stop = stop > 0
        return sums

    def _check_weights(self, task: Task) -> None:
        """Refuse to keep weights that the last step has ruined, before its loss shows it."""
        sizes = [weight.detach().abs().max() for weight in self.inner.parameters() if weight.numel()]
        self._check(float(torch.stack(sizes).max()), task)

    def _check(self, value: float, task: Task) -> None:
        if math.isfinite(value):
            return
        kept = sorted((self.directory / "checkpoints").glob("step-*"))
        where = f"the last good checkpoint, {kept[-1]}, is kept" if kept else "there was no checkpoint yet"
        raise UserError(
            f"loss or weights stopped being finite numbers at step {self.position.step + 1}, "
            f"on the task {task.name!r}; {where}",
            hint="start anew (--overwrite) with a lower rate (--set train.lr=... or learning_rates=[...]) "
            "or more warm-up",
        )

    def _judge(self, losses: Mapping[str, list[float]], started: float) -> None:
        """Evaluate after an epoch, keep the best weights, and decide whether to stop early."""
        position = self.position
        record: dict[str, Any] = {
            "epoch": position.epoch,
            "train_loss": {task: float(np.mean(values)) for task, values in losses.items()},
        }
        position.history.append(record)
        building = not self.inner.objective.slow_build.done(position.step / self.total)
        if self.evaluate is None or building:  # heads that nothing has trained yet are not judged
            position.seconds += time.monotonic() - started
            return
        scores = self.evaluate(self.inner.model)
        value, better = watched(self.settings.metric, scores)
        if position.best is None or better(value, position.best):
            position.best, position.bad_epochs = value, 0
            if self.settings.keep == "best" and self.accelerator.is_main_process:
                with atomic_path(self._best_file) as temporary:
                    save_file(
                        {k: v.cpu().contiguous() for k, v in self.inner.model.state_dict().items()}, temporary
                    )
        else:
            position.bad_epochs += 1
        position.stopped = (
            self.settings.patience is not None and position.bad_epochs >= self.settings.patience
        )
        position.seconds += time.monotonic() - started
        record[self.settings.metric] = value
        record["scores"] = {f"{s.task}/{s.split}": s.primary for s in scores}
        flat = {f"score/{name}": value for name, value in record["scores"].items()}
        self.log.write(position.step, epoch=position.epoch, watched=value, **flat)

    def _checkpoint(self) -> None:
        self.position.batch_source = self.batch_source.cursor
        if self.accelerator.is_main_process:
            save_checkpoint(self.directory / "checkpoints", self.inner, self.optimizer, self.position)
        self._saved = time.monotonic()

    def _due(self) -> bool:
        """True if it is time for a checkpoint inside an epoch."""
        every = self.settings.checkpoint_steps
        late = time.monotonic() - self._saved > 60 * self.settings.checkpoint_minutes
        return self._stop or late or (every is not None and self.position.step % every == 0)
