"""Callbacks, which are called during training. The logs and the progress bar are callbacks too."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from tasks.common.digests import quick_digest
from tasks.common.errors import UserError, brief, did_you_mean
from tasks.common.progress import Advance, progress, say
from tasks.common.reading import require_file
from tasks.common.text_format import score_text
from tasks.data.plain_text import HELD_OUT_TEXT

LOG_STEPS = 20


@dataclass(frozen=True)
class TrainingState:
    """The state of training.

    Attributes:
        label: what is being trained, such as "distilling (layers)".
        step: optimiser steps done.
        total_steps: steps of the whole run, unless it stops early.
        epoch: epochs done.
        task: the task of the last step; None before the first.
        loss: the value of the objective in the last step.
        terms: the value of each loss term in the last step, before weighting, without terms that have no
            items or are switched off (slow build, or a weight of 0).
        lr: the learning rate of the last step.
        metric: name of the watched metric (`train.metric`).
        value: the last value of the watched metric.
        scores: the last validation scores, "task/split" -> score.
        stopped: True once training has stopped early.
    """

    label: str
    step: int
    total_steps: int
    epoch: int = 0
    task: str | None = None
    loss: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    lr: float | None = None
    metric: str = "score"
    value: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    stopped: bool = False


class TrainingControl:
    """Lets callbacks control training. Its only attribute is `should_training_stop`."""

    __slots__ = ("_stop",)

    def __init__(self) -> None:
        self._stop = False

    @property
    def should_training_stop(self) -> bool:
        """Set it to True to end training.

        The model is evaluated once more, and the weights to keep are chosen as usual.
        """
        return self._stop

    @should_training_stop.setter
    def should_training_stop(self, value: bool | np.bool_) -> None:
        if not isinstance(value, bool | np.bool_):
            raise UserError(
                f"`control.should_training_stop` cannot be {brief(value)}", expected="True or False"
            )
        self._stop = bool(value)


class Callback:
    """Base class of callbacks; override the methods you need. Only the main process calls callbacks.

    A recipe with several stages calls `on_train_begin` to `on_train_end` once per stage.
    """

    def on_train_begin(self, state: TrainingState, control: TrainingControl) -> None:
        """Before the first step; when a run is resumed, `state.step` is not 0."""

    def on_step_end(self, state: TrainingState, control: TrainingControl) -> None:
        """After every optimiser step."""

    def on_evaluate(self, state: TrainingState, control: TrainingControl) -> None:
        """After the validation rows have been scored, once per epoch.

        A model whose heads are trained already is also scored before training (`state.epoch` is 0).
        """

    def on_save(self, state: TrainingState, control: TrainingControl) -> None:
        """After a checkpoint has been written."""

    def on_train_end(self, state: TrainingState, control: TrainingControl) -> None:
        """After the last step, or when training ends by an error or Ctrl-C."""


def require_known_events(callbacks: Iterable[Callback]) -> None:
    """Refuse callbacks with a method `on_...` that nothing calls, or that takes other arguments.

    Raises:
        UserError: names the method, and the most similar event.
    """
    events = [name for name in vars(Callback) if name.startswith("on_")]
    for callback in callbacks:
        classes = [base for base in type(callback).__mro__ if issubclass(base, Callback)]
        for name in (name for base in classes for name in vars(base)):
            if name.startswith("on_") and name not in events:
                raise UserError(
                    f"the callback {type(callback).__name__} has an unknown method {name!r}"
                    f"{did_you_mean(name, events)}",
                    expected=", ".join(events),
                    hint="a method that is no event needs a name without `on_`",
                )
        for name in events:
            try:
                inspect.signature(getattr(callback, name)).bind(None, None)
            except TypeError as error:
                raise UserError(
                    f"the callback {type(callback).__name__} has a method {name!r} that takes other "
                    f"arguments: {error}",
                    expected=f"`def {name}(self, state, control)`",
                ) from error


class MetricLog(Callback, ABC):
    """Base class of logs. Writes a record after the first step, every 20 steps, and after every epoch.

    A record holds means over the steps since the last record: `loss`, `loss/<term>` for each loss term and
    `loss/<task>` for each task; and the current `lr`. After an evaluation a record with
    `score/<task>/<split>` and `watched`, the value of `train.metric`, is written.
    """

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = defaultdict(list)

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one record."""

    @property
    def unlogged(self) -> dict[str, list[float]]:
        """The values since the last record, which a checkpoint keeps."""
        return {name: list(values) for name, values in self._values.items()}

    def restore(self, unlogged: Mapping[str, list[float]]) -> None:
        """Set the values since the last record."""
        self._values = defaultdict(list, {name: list(values) for name, values in unlogged.items()})

    def on_step_end(self, state: TrainingState, control: TrainingControl) -> None:
        """Collect the step's values."""
        if state.lr is not None:
            self._values["lr"] = [state.lr]
        losses = {"loss": state.loss, **{f"loss/{name}": value for name, value in state.terms.items()}}
        for name, value in (losses | {f"loss/{state.task}": state.loss}).items():
            if value is not None:
                self._values[name].append(value)
        if state.step == 1 or state.step % LOG_STEPS == 0:
            self.flush(state)

    def on_evaluate(self, state: TrainingState, control: TrainingControl) -> None:
        """Write the scores."""
        self.flush(state)
        scores = {f"score/{name}": value for name, value in state.scores.items()}
        watched = {} if state.value is None else {"watched": state.value}
        self.write(state.step, {"epoch": state.epoch, **watched, **scores})

    def on_train_end(self, state: TrainingState, control: TrainingControl) -> None:
        """Write the remaining values."""
        self.flush(state)

    def flush(self, state: TrainingState) -> None:
        """Write a record of the values since the last one."""
        if "lr" in self._values:
            means = {name: sum(values) / len(values) for name, values in self._values.items()}
            self._values.clear()
            self.write(state.step, means)


class JsonLinesLog(MetricLog):
    """Writes `log.jsonl` in a directory, one record per line, during the run.

    When a run is resumed, what was written after the checkpoint is dropped.
    """

    def __init__(self, directory: Path):
        super().__init__()
        self._path = directory / "log.jsonl"
        self._file: TextIO | None = None

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self._path.stat().st_size if self._path.is_file() else 0

    @property
    def digest(self) -> str | None:
        """Digest of the file; None if there is none."""
        return quick_digest(self._path) if self._path.is_file() else None

    def cut(self, size: int) -> None:
        """Drop what follows the last whole line within the first `size` bytes."""
        if self._path.is_file():
            os.truncate(self._path, self._path.read_bytes().rfind(b"\n", 0, size) + 1)

    def on_train_begin(self, state: TrainingState, control: TrainingControl) -> None:
        """Open the file."""
        if self._path.exists():
            require_file(self._path)  # opening a named pipe would block
        self._file = open(self._path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (closed by on_train_end)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a line."""
        assert self._file is not None, "training begins before anything is written"
        self._file.write(json.dumps({"step": step, **values}) + "\n")

    def on_train_end(self, state: TrainingState, control: TrainingControl) -> None:
        """Close the file."""
        super().on_train_end(state, control)
        if self._file is not None:
            self._file.close()


class TensorBoardLog(MetricLog):
    """Writes the same records for TensorBoard to `tensorboard/` in a directory."""

    def __init__(self, directory: Path):
        super().__init__()
        self._directory = directory / "tensorboard"
        self._board: Any = None

    def on_train_begin(self, state: TrainingState, control: TrainingControl) -> None:
        """Open the log; records after the checkpoint are dropped."""
        from torch.utils.tensorboard import SummaryWriter

        self._board = SummaryWriter(str(self._directory), purge_step=state.step and state.step + 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add scalars."""
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def on_train_end(self, state: TrainingState, control: TrainingControl) -> None:
        """Flush and close."""
        super().on_train_end(state, control)
        if self._board is not None:
            self._board.close()


class ProgressBar(Callback):
    """Shows a progress bar on standard error, and prints the scores of every epoch; silent with `--quiet`."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._advance: Advance | None = None

    def on_train_begin(self, state: TrainingState, control: TrainingControl) -> None:
        """Show the bar."""
        bar = progress(state.label, state.total_steps, done=state.step, unit="steps")
        self._advance = self._open.enter_context(bar)

    def on_step_end(self, state: TrainingState, control: TrainingControl) -> None:
        """Move the bar."""
        assert self._advance is not None, "training begins before its first step"
        self._advance(1, f"{state.task} loss {state.loss:.4f}")

    def on_evaluate(self, state: TrainingState, control: TrainingControl) -> None:
        """Print the epoch's scores."""
        metrics = {HELD_OUT_TEXT: "loss"}
        scores = ", ".join(
            f"{name} {score_text(value, metrics.get(name, 'score'))}" for name, value in state.scores.items()
        )
        shown_already = len(state.scores) == 1 and state.metric == "score"
        watched = ""
        if state.value is not None and not shown_already:
            watched = f" ({state.metric} {score_text(state.value, state.metric, 2)})"
        epoch = f"epoch {state.epoch}" if state.epoch else "before training"
        say(f"{state.label}: {epoch}: {scores}{watched}")

    def on_train_end(self, state: TrainingState, control: TrainingControl) -> None:
        """Remove the bar."""
        self._open.close()
        if state.stopped:
            say(f"{state.label}: stopped early at epoch {state.epoch}")
