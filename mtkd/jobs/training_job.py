"""The skeleton of every training job: open, validate, prepare, train, score, save, finish."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mtkd.device import keep_memory
from mtkd.jobs.common import Request
from mtkd.jobs.training_data import EncodedRows
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.parameter_count import count_parameters
from mtkd.training.callbacks import Callback
from mtkd.training.processes import make_accelerator
from mtkd.training.run_directory import RunDirectory
from tasks.task import Task

Warn = Callable[[str], None]


def ignore_warning(text: str) -> None:
    """What is called with each warning by default: nothing happens."""


@dataclass(frozen=True)
class Trained:
    """What training gave.

    Attributes:
        scores: "task/split" -> scores, as they are recorded.
        training: how training went, as it is recorded.
        facts: what else to record.
    """

    model: MultiTaskModel
    scores: dict[str, Any]
    training: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class TrainingJob(ABC):
    """A training job. A job says what it reads, prepares and trains; `run` does all that they share.

    Everything is validated in `inputs` and `prepare`; nothing is written before both are done.

    Attributes:
        name: "refine", "distill" or "finetune".
        settings: of the job, with a `train`.
        sources: what the run learns from, by the names in its identity.
        callbacks: called as training goes on.
        warn: called with each warning, before training starts.
        rows: the rows of the run; None before `inputs`, and for plain text.
        warnings: what the user should know before trusting the result.
    """

    name: ClassVar[str]
    request: Request
    settings: Any
    tasks: list[Task]
    sources: Mapping[str, Any]
    callbacks: Sequence[Callback]
    warn: Warn
    rows: EncodedRows | None = field(default=None, init=False)
    warnings: list[str] = field(default_factory=list, init=False)

    @abstractmethod
    def inputs(self) -> dict[str, Any]:
        """Read the rows; the digests of all that goes into the run."""

    @abstractmethod
    def prepare(self) -> MultiTaskModel:
        """Load and validate all that is left, and get ready to train; the model that is trained."""

    @abstractmethod
    def train(self) -> Trained:
        """Train and score."""

    def clean_up(self) -> None:  # noqa: B027 (most jobs have nothing to drop)
        """Drop what only an unfinished run needs."""

    def run(self) -> RunDirectory:
        """Run the job, or resume it, or find it finished.

        Returns:
            the finished run.

        Raises:
            UserError: anything wrong with the request, before anything is written.
            Interrupted: Ctrl-C or SIGTERM, after writing a checkpoint.
        """
        run = self.request.open_run(self.name, self.settings, self.tasks, **self.sources)
        self.accelerator = make_accelerator(self.request.device)
        inputs = self.inputs()
        run.check_inputs(**inputs)
        if run.finished:
            return run
        main = self.accelerator.is_main_process
        with keep_memory():
            model = self.prepare()
            for text in self.warnings if main else ():
                self.warn(text)
            rows = {"rows": self.rows.data.summary()} if self.rows else {}
            facts = inputs | rows | {"warnings": self.warnings}
            self.accelerator.wait_for_everyone()  # every process has looked at the directory
            if main:
                run.begin(**facts, parameters=count_parameters(model).to_json())
            self.accelerator.wait_for_everyone()
            trained = self.train()
        if main:
            trained.model.info.scores = trained.scores
            trained.model.save(self.request.out / "model")
            run.finish(scores=trained.scores, training=trained.training, **trained.facts)
            self.clean_up()
        self.accelerator.wait_for_everyone()
        return run
