"""The settings of recipes: their names, defaults and allowed values.

This file is longer than others so that everything that a recipe can set is in one place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveInt,
    SerializeAsAny,
    ValidationInfo,
)

from mtkd.losses.term_settings import TermName, TermSettings, is_zero, validate_term
from mtkd.models.encoders.encoder import StudentSettings
from mtkd.models.encoders.encoder_registry import student_settings
from mtkd.setting_errors import validate
from mtkd.strict_settings import Strict
from tasks.common.errors import UserError, unknown
from tasks.common.records import Depth, Name, Seed
from tasks.tokens.sampler import Mixing

# The settings class of the student, chosen by `student.kind`.
Student = SerializeAsAny[Annotated[StudentSettings, BeforeValidator(student_settings)]]

AUTO_STEPS, AUTO_EPOCHS = 1000, (3, 20)  # what epochs = "auto" aims at
Precision = Literal["fp32", "bf16", "auto"]
Beta = Annotated[float, Field(ge=0, lt=1)]


def _betas(value: tuple[float, float] | None, info: ValidationInfo) -> tuple[float, float] | None:
    """two numbers from 0 to below 1 (only for adam and adamw), or none"""
    if value is not None and info.data.get("optimizer") == "adadelta":
        raise ValueError("adadelta has no betas")
    return value


def _batch_tokens(value: int | None, info: ValidationInfo) -> int | None:
    """integer > 0 (not with epochs = "auto" without `steps`), or none"""
    if value is not None and info.data.get("epochs") == "auto" and info.data.get("steps") is None:
        raise ValueError('an integer > 0 together with `epochs` or `steps`, instead of epochs = "auto"')
    return value


def _warmup(value: float) -> float:
    """a fraction from 0 to below 1, or a whole number of steps"""
    if value < 0 or (value >= 1 and value != int(value)):
        raise ValueError("a fraction from 0 to below 1, or a whole number of steps")
    return value


class TrainSettings(Strict):
    """How the training loop runs.

    Attributes:
        epochs: the number of passes over the training rows; "auto" = as many as make 1,000 steps, but
            at least 3 and at most 20; this counts all training rows, even those that `unlabelled_fraction`
            or `min_confidence` leaves out.
        steps: the total number of optimiser steps, instead of `epochs`; None = use `epochs`.
        batch_size: rows per optimiser step, over all processes.
        batch_tokens: instead of `batch_size`, as many rows per optimiser step, over all processes, as fit
            into this many tokens of the trained model, padding included (rows x tokens of the longest row); a
            longer row is a step of its own.
        micro_batch_size: rows that go through the model at once on each process; None = all of its rows.
        eval_batch_size: rows that go through the model at once during evaluation.
        optimizer: the optimiser, as in torch.optim; weight decay is decoupled from the gradient in `adamw`,
            and part of it in `adam`.
        betas: the decay rates of Adam's two moments; None = torch's, 0.9 and 0.999.
        eps: the constant that the optimiser adds to denominators; None = torch's (1e-8 for Adam).
        lr: the peak learning rate.
        weight_decay: the weight decay of all weights except biases and normalisation layers.
        schedule: the learning rate after warm-up: `constant`, or `linear` decay to 0.
        warmup: the length of the warm-up, in which the learning rate rises linearly: a fraction of all steps
            if below 1, otherwise a number of steps.
        max_grad_norm: the maximum gradient norm; None = no clipping.
        precision: "bf16" runs the trained model under autocast; "auto" does so where the device multiplies in
            bf16. The scores at the end of a run are computed in fp32.
        mixing: how often each task is drawn: all its rows once per epoch (`all`), in proportion to its number
            of rows n (`proportional`) or to sqrt(n) (`sqrt`), equally often (`uniform`), or in proportion to
            n at first and n**0.2 at the end (`annealed`).
        group_by_length: whether to put rows of similar length into the same batch.
        shuffle: which rows are shuffled: all rows (`rows`), or the order of blocks of 4,096 rows and the rows
            within each block (`blocks`, which reads a knowledge store in order); `auto` uses `blocks` for a
            store over 1 GiB.
        patience: stop after this many evaluations without a better `metric`; None = never. There is one
            evaluation after each epoch, but none during slow build.
        metric: the metric to watch: "score" (mean of the tasks' scores), "loss", "task/metric" such as
            "rte/accuracy", or "task/split/metric"; the splits of a task are averaged unless one is named.
        keep: which weights to keep: those of the epoch that was best by `metric` ("best"), or the last ones
            ("last").
        checkpoint_minutes: how many minutes may pass before another checkpoint is written; one is always
            written after each epoch.
        checkpoint_steps: also write a checkpoint every this many steps.
        steps_per_epoch: the number of steps that count as an epoch, after which the model is evaluated; None
            = one pass over the rows.
        unlabelled_fraction: the fraction of the rows of an epoch that have no labels: each epoch uses every
            labelled row once, and as many rows without labels as make up this fraction; the next epoch
            continues with the following rows. None = all rows once.
        min_confidence: drop rows without labels if the teacher's most probable class has a lower probability
            (classification only); None = keep all.
        class_weights: weights of the classes in the loss on labels of classification tasks: one number per
            label, or "balanced" = inversely proportional to their number of rows; None = 1. They are divided
            by their mean over the labelled training rows, so that the loss is the weighted mean of torch.
        seed: the random seed of weights, row order and dropout.
    """

    epochs: Annotated[int, Field(gt=0)] | Literal["auto"] = 3
    steps: int | None = Field(None, gt=0)
    batch_size: int = Field(32, gt=0)
    batch_tokens: Annotated[int | None, Field(gt=0), AfterValidator(_batch_tokens)] = None
    micro_batch_size: int | None = Field(None, gt=0)
    eval_batch_size: int = Field(64, gt=0)
    optimizer: Literal["adam", "adamw", "adadelta"] = "adamw"
    betas: Annotated[tuple[Beta, Beta] | None, AfterValidator(_betas)] = None
    eps: float | None = Field(None, gt=0)
    lr: float = Field(5e-5, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    schedule: Literal["constant", "linear"] = "linear"
    warmup: Annotated[float, AfterValidator(_warmup)] = 0.0
    max_grad_norm: float | None = Field(1.0, gt=0)
    precision: Precision = "fp32"
    mixing: Mixing = "all"
    group_by_length: bool = True
    shuffle: Literal["auto", "rows", "blocks"] = "auto"
    steps_per_epoch: int | None = Field(None, gt=0)
    unlabelled_fraction: float | None = Field(None, gt=0, lt=1)
    min_confidence: float | None = Field(None, gt=0, le=1)
    class_weights: Literal["balanced"] | list[Annotated[float, Field(ge=0)]] | None = None
    metric: str = "score"
    keep: Literal["best", "last"] = "best"
    patience: int | None = Field(None, gt=0)
    checkpoint_minutes: float = Field(10.0, gt=0)
    checkpoint_steps: int | None = Field(None, gt=0)
    seed: Seed = 0

    @property
    def n_epochs(self) -> int:
        """The number of epochs.

        Raises:
            UserError: it depends on the number of rows (`with_epochs`).
        """
        if self.epochs == "auto":
            raise UserError(
                "train.epochs=auto cannot be used here: the number of rows is not known",
                hint="set `train.epochs=N`",
            )
        return self.epochs

    def with_epochs(self, rows: int) -> TrainSettings:
        """These settings with the number of epochs that "auto" means for this many training rows."""
        if self.epochs != "auto":
            return self
        epochs = math.ceil(AUTO_STEPS / math.ceil(rows / self.batch_size))
        return self.model_copy(update={"epochs": min(max(epochs, AUTO_EPOCHS[0]), AUTO_EPOCHS[1])})


class TeacherSettings(Strict):
    """How the teacher is run.

    Attributes:
        precision: "bf16" runs the teacher under autocast; "auto" as for `train.precision`.
        cache_logits: whether to compute the teacher's logits once and keep them; those of several teachers
            always are.
        average: what is averaged if a task has several teachers: their `probabilities` (the student learns
            the logarithm of the mean), or their `logits`.
    """

    precision: Precision = "fp32"
    cache_logits: bool = True
    average: Literal["probabilities", "logits"] = "probabilities"


class StageSettings(Strict):
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


class DistillSettings(Strict):
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
        return changed


class RefineSettings(Strict):
    """How the multi-task teacher is trained.

    Attributes:
        pooling: how the vector of a row is computed (see `student.transformer.pooling`); "auto" uses what the
            encoder's directory declares, or else "cls".
        layers: keep only this many of the encoder's first layers; None = all.
        pairs: how tasks with two texts are read: both texts as one sequence ("cross-encoder"); each text by
            itself, with a head that compares their vectors ("bi-encoder"); or "auto", a bi-encoder if the
            encoder was trained to compare sentences, every task supports it, and there are few rows.
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
    pairs: Literal["auto", "cross-encoder", "bi-encoder"] = "auto"
    pair_head: Literal["linear", "san"] = "linear"
    init_heads: Literal["auto", "linear-probe", "random"] = "auto"
    train: TrainSettings = TrainSettings()


class FinetuneSettings(Strict):
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


COMMANDS: dict[str, type[Strict]] = {
    "distill": DistillSettings,
    "refine": RefineSettings,
    "finetune": FinetuneSettings,
}
