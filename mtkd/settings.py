"""The settings of recipes: their names, defaults and allowed values.

The settings of the `train` table are in `mtkd/train_settings.py`, those of a loss in the class `Settings` of
the loss (`mtkd/losses/`), and those of a student in the class `Settings` of its encoder
(`mtkd/models/encoders/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, SerializeAsAny

from mtkd.losses.term_settings import TermName, TermSettings, is_zero, validate_term
from mtkd.models.encoders.encoder import StudentSettings
from mtkd.models.encoders.encoder_registry import student_settings
from mtkd.setting_errors import validate
from mtkd.strict_settings import StrictSettings
from mtkd.train_settings import DISTILL_LR, PrecisionOrAuto, TrainSettings
from tasks.common.errors import UserError, unknown
from tasks.common.records import Depth, Name

# The settings class of the student, chosen by `student.kind`.
Student = SerializeAsAny[Annotated[StudentSettings, BeforeValidator(student_settings)]]


class TeacherSettings(StrictSettings):
    """How the teacher is run.

    Attributes:
        precision: "bf16" runs the teacher under autocast; "auto" as for `train.precision`.
        cache_logits: whether to compute the teacher's logits once and keep them; the logits of several
            teachers are always kept.
        average: what is averaged if a task has several teachers: their `probabilities` (the student learns
            the logarithm of the mean), or their `logits`.
    """

    precision: PrecisionOrAuto = "fp32"
    cache_logits: bool = True
    average: Literal["probabilities", "logits"] = "probabilities"


class StageSettings(StrictSettings):
    """One stage of a distillation.

    Attributes:
        terms: the names of the recipe's terms that the stage trains on.
        train: settings that replace those of the recipe's `train` table.
    """

    terms: list[str] = Field(min_length=1)
    train: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """A stage with all its settings resolved.

    Attributes:
        name: "" if a recipe has only one stage.
        merged: the training settings of the stages that `one_stage` has merged into this one.
    """

    name: str
    terms: dict[str, TermSettings]
    train: TrainSettings
    merged: tuple[TrainSettings, ...] = ()

    def with_epochs(self, rows: int) -> Stage:
        """This stage with the number of epochs that "auto" means for this many training rows."""
        train = self.train.with_epochs(rows)
        if self.merged and self.train.epochs == "auto":
            epochs = sum(part.with_epochs(rows).n_epochs for part in self.merged)
            train = train.model_copy(update={"epochs": epochs})
        return replace(self, train=train)

    @staticmethod
    def merge(stages: Sequence[Stage]) -> Stage:
        """One stage with all terms of some stages, and the sum of their steps or epochs.

        Its other training settings are those of the last stage.

        Raises:
            UserError: some stages train for a number of steps, others for a number of epochs.
        """
        terms = {name: term for stage in stages for name, term in stage.terms.items()}
        parts = tuple(stage.train for stage in stages)
        steps = [train.steps for train in parts if train.steps is not None]
        if steps and len(steps) < len(parts):
            raise UserError(
                "one_stage=true adds up the lengths of the stages, but some are a number of steps and others "
                "a number of epochs",
                expected="`steps` for all stages, or `epochs` for all",
                hint="`train.steps=N` or `train.epochs=N` sets the length of each stage",
            )
        epochs = [train.epochs for train in parts if train.epochs != "auto"]
        length = {"epochs": sum(epochs) if len(epochs) == len(parts) else "auto"}
        if steps:
            length = {"steps": sum(steps)}
        return Stage("", terms, parts[-1].model_copy(update=length), parts)


AnyTermSettings = Annotated[SerializeAsAny[TermSettings], BeforeValidator(validate_term)]


class DistillSettings(StrictSettings):
    """A distillation recipe.

    Attributes:
        supervision: what the student learns from: the "teacher", or "labels" only, without any teacher or
            additional text.
        student: the kind of student and its sizes.
        terms: name -> loss term; a term with weight 0 is dropped.
        stages: name -> stage, in the order in which they run; without any, all terms form one stage.
        pack_texts: whether a run on plain text joins neighbouring texts, with a separator between them, into
            sequences of `student.max_length` tokens, instead of starting a sequence with each text.
        one_stage: whether to merge all stages into one, with all their terms and the sum of their epochs or
            steps; the other training settings are those of the last stage.
        run_stages: run only these stages; empty = all.
        slow_build: the fraction of a stage's steps over which the compared layers are switched on one by one,
            from the lowest (WaLDORf). The other terms and the linear decay of the learning rate start after
            it; 0 = everything is on from the start.
        per_task: overrides for single tasks, such as `per_task.rte = { "train.lr" = 1e-5 }`; used only in
            runs on that task alone; a run on several tasks warns that they do not apply.
    """

    name: str
    summary: str
    source: str
    supervision: Literal["teacher", "labels"] = "teacher"
    student: Student = Field(default_factory=lambda: student_settings({}))
    terms: dict[TermName, AnyTermSettings]
    stages: dict[Name, StageSettings] = Field(default_factory=dict)
    pack_texts: bool = False
    one_stage: bool = False
    run_stages: list[str] = Field(default_factory=list)
    slow_build: float = Field(0.0, ge=0, lt=1)
    train: TrainSettings = TrainSettings()
    teacher: TeacherSettings = TeacherSettings()
    per_task: dict[str, dict[str, Any]] = Field(default_factory=dict)

    def resolved_stages(self) -> list[Stage]:
        """Resolve the stages to run, in order, each with its terms and training settings.

        Raises:
            UserError: a stage names a term that does not exist, no stage is left, or stages that are to be
                merged are measured differently (`Stage.merge`).
        """
        used = {name: term for name, term in self.terms.items() if not is_zero(term.weight)}
        if self.supervision == "labels":
            used = {"labels": TermSettings(loss="labels")}
        for name in self.run_stages:
            if name not in self.stages:
                raise unknown("stage (run_stages)", name, self.stages)
        stages = []
        for name, stage in self.stages.items():
            for term in stage.terms:
                if term not in self.terms:
                    raise unknown(f"term of the stage {name!r}", term, self.terms)
            terms = {term: used[term] for term in stage.terms if term in used}
            if terms and (not self.run_stages or name in self.run_stages):
                stages.append(Stage(name, terms, self._train(stage)))
        if not self.stages or self.supervision == "labels":
            last_stage = list(self.stages.values())[-1:]
            stages = [Stage("", used, self._train(*last_stage))]
        elif self.one_stage and stages:
            stages = [Stage.merge(stages)]
        if not stages or not all(stage.terms for stage in stages):
            raise UserError(
                f"{self.name} has no term left to train on",
                hint="give a term a weight above 0, or run another stage",
            )
        return stages

    def _train(self, stage: StageSettings | None = None) -> TrainSettings:
        changed: TrainSettings = validate(
            TrainSettings, self.train.model_dump() | (stage.train if stage else {})
        )
        if changed.lr == "auto" and self.supervision == "teacher":
            return changed.model_copy(update={"lr": DISTILL_LR})
        return changed


class RefineSettings(StrictSettings):
    """How the multi-task teacher is trained.

    Attributes:
        pooling: how the vector of a row is computed (see `student.transformer.pooling`); "auto" uses what the
            encoder's directory declares, or else "cls".
        layers: keep only this many of the encoder's first layers; None = all.
        pairs: how tasks with two texts are read: both texts as one sequence ("cross-encoder"); each text by
            itself, with a head that compares their vectors ("bi-encoder"); a list of tasks that are read by a
            bi-encoder, all others by a cross-encoder; or "auto". If the encoder was trained to compare
            sentences, "auto" is a bi-encoder for all tasks when there are few rows and every task supports
            it, and otherwise for tasks of type `regress`; in all other cases it is a cross-encoder.
        pair_head: the heads of classification tasks with two texts: "linear", as all others, or "san", the
            stochastic answer network of MT-DNN, which starts from random weights.
        init_heads: what linear heads start from: a "linear-probe", which is fitted to the features of the
            pretrained encoder before any weight of the encoder changes, "random" weights, or a linear probe
            ("auto") except for tasks with two texts of a cross-encoder, whose pretrained features do not yet
            encode how the texts relate.
    """

    name: str
    summary: str
    source: str
    pooling: Literal["auto", "cls", "pooler", "mean"] = "auto"
    layers: Depth | None = None
    max_length: int = Field(128, ge=8)
    stride: int = Field(128, ge=0)
    head_hidden_size: int = Field(0, ge=0, le=32_768)
    dropout: float = Field(0.1, ge=0, lt=1)
    pairs: Literal["auto", "cross-encoder", "bi-encoder"] | list[str] = "auto"
    pair_head: Literal["linear", "san"] = "linear"
    init_heads: Literal["auto", "linear-probe", "random"] = "auto"
    train: TrainSettings = TrainSettings()


class FinetuneSettings(StrictSettings):
    """How a model is fine-tuned on one task: one run per learning rate, keeping the best by `train.metric`.

    Attributes:
        learning_rates: the learning rates to try, instead of `train.lr`.
        epoch_counts: the numbers of epochs to try with each learning rate; empty = only `train.epochs`.
        max_length: the maximum number of tokens per row; None = as the model was trained.
        per_task: task -> dotted setting -> value.
    """

    name: str
    summary: str
    source: str
    learning_rates: list[Annotated[float, Field(gt=0)]] = Field(min_length=1)
    epoch_counts: list[PositiveInt] = Field(default_factory=list)
    max_length: int | None = Field(None, ge=8)
    train: TrainSettings = TrainSettings()
    per_task: dict[str, dict[str, Any]] = Field(default_factory=dict)


SETTINGS_OF_COMMAND: dict[str, type[StrictSettings]] = {
    "distill": DistillSettings,
    "refine": RefineSettings,
    "finetune": FinetuneSettings,
}
