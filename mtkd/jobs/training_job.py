"""The base class of training jobs: open the run, validate, prepare, train, score, save, finish."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from mtkd.device import keep_memory
from mtkd.evaluation.baselines import baseline_warnings
from mtkd.evaluation.scoring import TaskScores, read_predictions, write_predictions
from mtkd.jobs.request import Request
from mtkd.jobs.training_data import EncodedRows
from mtkd.jobs.validation_scores import scores_record
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.parameter_count import count_parameters
from mtkd.output_files.distributed import ProcessGroup
from mtkd.training.callbacks import Callback
from mtkd.training.processes import from_main_process, make_accelerator
from mtkd.training.run_directory import PREDICTIONS, RunDirectory
from tasks.common.progress import say
from tasks.task import Task

Warn = Callable[[str], None]


def ignore_warning(text: str) -> None:
    """Ignore a warning; the default for `warn`."""


@dataclass(frozen=True)
class JobResult:
    """The result of `TrainingJob.train`.

    Attributes:
        scores: the validation scores; their predictions are written beside the model.
        training: the training history, as recorded in run.json.
        record_values: further values to record in run.json.
    """

    model: MultiTaskModel
    scores: Sequence[TaskScores]
    training: dict[str, Any]
    record_values: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class TrainingJob(ABC):
    """A training job. Subclasses define `inputs`, `prepare` and `train`; `run` does everything else.

    `inputs` and `prepare` validate everything; nothing is written before both are done.

    Attributes:
        command: "refine", "distill" or "finetune".
        settings: the settings of the job, which include `train`.
        sources: encoder, teacher, corpus and so on; the keys are their names in the run's identity.
        callbacks: called during training.
        warn: called with each warning.
        warnings: the warnings that are shown before training and recorded in run.json.
    """

    command: ClassVar[str]
    request: Request
    settings: Any
    tasks: list[Task]
    sources: Mapping[str, Any]
    callbacks: Sequence[Callback]
    warn: Warn
    warnings: list[str] = field(default_factory=list, init=False)
    _rows: EncodedRows | None = field(default=None, init=False)

    @property
    def rows(self) -> EncodedRows:
        """The rows of the run, which `inputs` reads; a run on plain text has none."""
        assert self._rows is not None, "`inputs` must be called first"
        return self._rows

    @rows.setter
    def rows(self, rows: EncodedRows) -> None:
        self._rows = rows

    @abstractmethod
    def inputs(self) -> dict[str, Any]:
        """Read the rows; returns the digests of all inputs of the run."""

    @abstractmethod
    def prepare(self) -> MultiTaskModel:
        """Load and validate everything else; returns the model to train."""

    @abstractmethod
    def train(self) -> JobResult:
        """Train and score the model."""

    def run(self) -> RunDirectory:
        """Run or resume the job; does nothing if it is already finished.

        Returns:
            The finished run.

        Raises:
            UserError: the request is invalid; raised before anything is written.
            Interrupted: Ctrl-C or SIGTERM, after writing a checkpoint.
        """
        run = self.request.open_run(self.command, self.settings, self.tasks, **self.sources)
        self.accelerator = make_accelerator(self.request.device)
        inputs = self.inputs()
        run.check_inputs(**inputs)
        main = self.accelerator.is_main_process
        if from_main_process(lambda: run.finished):  # another process may just have finished it
            say(f"this run is already finished: {self.request.out}")
            if main:
                run.clean_up()
            return run
        sizes = [part.describe() for part in self._rows.data.parts] if self._rows else []
        with keep_memory():
            model = self.prepare()
            for text in self.warnings if main else ():
                self.warn(text)
            rows = {"rows": self._rows.data.summary()} if self._rows else {}
            for line in sizes:
                say(line)
            values = {"warnings": self.warnings, "parameters": count_parameters(model).to_json()}
            with run.open(ProcessGroup.of(self.accelerator), **inputs, **rows, **values):
                if run.finished:  # by another process, in the meantime
                    return run
                trained = self.train()
                if main:
                    scores = trained.model.info.scores = scores_record(trained.scores)
                    trained.model.info.data = self.request.source().name if self._rows else None
                    trained.model.save(self.request.out / "model")
                    write_predictions(self.request.out / PREDICTIONS, trained.scores)
                    run.finish(scores=scores, training=trained.training, **trained.record_values)
                    self._warn_of_weak_scores(trained.scores)
        return run

    def _warn_of_weak_scores(self, scores: Sequence[TaskScores]) -> None:
        """Warn of scores that are not clearly better than the best constant prediction."""
        if any(score.predictions is None for score in scores):  # the scores were read from a file
            saved = read_predictions(self.request.out / PREDICTIONS)
            scores = [replace(s, predictions=saved.get(s.task, {}).get(s.split)) for s in scores]
        if weak := baseline_warnings({task.name: task for task in self.tasks}, scores):
            self.warn("\n".join(weak))
