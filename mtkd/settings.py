"""Settings of a run: what there is to set, its defaults, and what is allowed.

Longer than other files: all that a recipe may say is read together.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny, ValidationError
from pydantic_core import PydanticCustomError

from mtkd.losses.term_settings import Strict, TermSettings, is_zero
from mtkd.models.encoders.base import StudentSettings
from mtkd.models.encoders.registry import settings_class, student_settings
from tasks.errors import UserError, unknown
from tasks.sampler import Mixing

# Settings of the student's kind, chosen by `student.kind`.
Student = SerializeAsAny[Annotated[StudentSettings, BeforeValidator(student_settings)]]


class TrainSettings(Strict):
    """How the training loop runs.

    Attributes:
        epochs: passes over the training rows.
        steps: optimiser steps in all, instead of `epochs`; None = by epochs.
        batch_size: rows per step, over all processes.
        micro_batch: rows that go through the model at once on each process; None = all of its share.
        eval_batch_size: rows at once when scoring.
        optimizer: as in torch.optim.
        lr: the highest learning rate.
        weight_decay: of all weights but biases and norms.
        schedule: of the learning rate after warm-up: constant, or linear down to 0.
        warmup: share of the steps in which the learning rate rises from 0.
        clip: gradient norm limit; None = none.
        precision: "bf16" runs the student under autocast.
        mixing: how tasks share the steps: each passed over once per epoch (`all`), or drawn in proportion to
            n rows, sqrt(n), 1, or first n and in the end n**0.2 (`annealed`).
        bucket: batch rows of similar length.
        shuffle: which rows are shuffled together: all (`rows`), or blocks of 4,096 and the rows in each
            (`blocks`), which reads a knowledge store in order; `auto` is `blocks` for a store over 1 GiB.
        patience: epochs without a better `metric` before stopping; None = never.
        metric: "score" (mean of the tasks' scores), "loss", or "task/metric" such as "rte/accuracy".
        keep: "best" ends with the epoch that was best by `metric`, "last" with the last one.
        checkpoint_minutes: a checkpoint is written when the last one is so old, and after each epoch.
        checkpoint_steps: also write one every so many steps.
        steps_per_epoch: steps that count as an epoch; None = as many as the rows make.
        seed: of weights, order and dropout.
    """

    epochs: int = Field(3, gt=0)
    steps: int | None = Field(None, gt=0)
    batch_size: int = Field(32, gt=0)
    micro_batch: int | None = Field(None, gt=0)
    eval_batch_size: int = Field(64, gt=0)
    optimizer: Literal["adam", "adamw", "adadelta"] = "adamw"
    lr: float = Field(5e-5, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    schedule: Literal["constant", "linear"] = "linear"
    warmup: float = Field(0.0, ge=0, lt=1)
    clip: float | None = Field(1.0, gt=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    mixing: Mixing = "all"
    bucket: bool = True
    shuffle: Literal["auto", "rows", "blocks"] = "auto"
    steps_per_epoch: int | None = Field(None, gt=0)
    metric: str = "score"
    keep: Literal["best", "last"] = "best"
    patience: int | None = Field(None, gt=0)
    checkpoint_minutes: float = Field(10.0, gt=0)
    checkpoint_steps: int | None = Field(None, gt=0)
    seed: int = Field(0, ge=0)


class TeacherSettings(Strict):
    """How the teacher answers.

    Attributes:
        precision: "bf16" runs the teacher under autocast.
        cache_logits: compute its logits once and keep them.
    """

    precision: Literal["fp32", "bf16"] = "fp32"
    cache_logits: bool = True


class StageSettings(Strict):
    """One stage of a distillation.

    Attributes:
        terms: names of the recipe's terms that it trains on.
        train: what differs from the recipe's `train`.
    """

    terms: list[str] = Field(min_length=1)
    train: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """A stage with everything settled; `name` is "" where a recipe has only one."""

    name: str
    terms: dict[str, TermSettings]
    train: TrainSettings


def _of_its_loss(given: Any) -> Any:
    """The settings of a term, validated by its loss."""
    if not isinstance(given, dict) or not isinstance(given.get("loss"), str):
        return given if isinstance(given, TermSettings) else TermSettings.model_validate(given)
    return _loss_settings(given["loss"]).model_validate(given)


def _loss_settings(loss: str) -> type[TermSettings]:
    from mtkd.losses.registry import find_loss

    found = find_loss(loss)
    if found is None:
        raise PydanticCustomError("unknown_loss", "there is no such loss")
    return found.Settings


AnyTermSettings = Annotated[SerializeAsAny[TermSettings], BeforeValidator(_of_its_loss)]


class DistillSettings(Strict):
    """A distillation recipe.

    Attributes:
        supervision: "labels" trains the same student on labels alone, without any teacher or corpus.
        student: which student, and its sizes.
        terms: name -> loss term; a term of weight 0 is left out.
        stages: name -> stage, in order; none = one stage of all terms.
        one_stage: run the terms of all stages at once, for as many epochs as the stages have together, else
            as the last stage says.
        run_stages: run only these stages; empty = all.
        slow_build: share of a stage's steps in which the layers that its terms compare are switched on one
            after the other, from the lowest; the other terms start when it is over, and a linear learning
            rate falls from there on (WaLDORf). 0 = all at once.
        per_task: task -> dotted setting -> value; holds where that task is trained alone.
    """

    name: str
    summary: str
    source: str
    supervision: Literal["teacher", "labels"] = "teacher"
    student: Student = Field(default_factory=lambda: student_settings({}))
    terms: dict[str, AnyTermSettings]
    stages: dict[str, StageSettings] = Field(default_factory=dict)
    one_stage: bool = False
    run_stages: list[str] = Field(default_factory=list)
    slow_build: float = Field(0.0, ge=0, lt=1)
    train: TrainSettings = TrainSettings()
    teacher: TeacherSettings = TeacherSettings()
    per_task: dict[str, dict[str, Any]] = Field(default_factory=dict)

    def resolved_stages(self) -> list[Stage]:
        """The stages to run, in order, each with its terms and training settings.

        Raises:
            UserError: a stage names a term that is not there, or no stage is left.
        """
        used = {name: term for name, term in self.terms.items() if not is_zero(term.weight)}
        if self.supervision == "labels":
            used = {"labels": TermSettings(loss="labels")}
        for name in self.run_stages:
            if name not in self.stages:
                raise unknown("stage (run_stages)", name, self.stages)
        found = []
        for name, stage in self.stages.items():
            for term in stage.terms:
                if term not in self.terms:
                    raise unknown(f"term of the stage {name!r}", term, self.terms)
            terms = {term: used[term] for term in stage.terms if term in used}
            if terms and (not self.run_stages or name in self.run_stages):
                found.append(Stage(name, terms, self._train(stage)))
        if not self.stages or self.supervision == "labels":
            last = list(self.stages.values())[-1:]
            found = [Stage("", used, self._train(*last))]
        elif self.one_stage and found:
            every = {name: term for stage in found for name, term in stage.terms.items()}
            epochs = sum(stage.train.epochs for stage in found)
            found = [Stage("", every, found[-1].train.model_copy(update={"epochs": epochs}))]
        if not found or not all(stage.terms for stage in found):
            raise UserError(
                f"no term of {self.name} is left to train on",
                hint="give one a weight above 0, or another stage",
            )
        return found

    def _train(self, stage: StageSettings | None = None) -> TrainSettings:
        changed: TrainSettings = validate(
            TrainSettings, self.train.model_dump() | (stage.train if stage else {})
        )
        return changed


class RefineSettings(Strict):
    """How the multi-task teacher is trained.

    Attributes:
        pooling: the row's vector; "auto" is what the encoder's directory declares, else cls.
        layers: keep only the encoder's first layers; None = all.
    """

    name: str
    summary: str
    source: str
    pooling: Literal["auto", "cls", "mean"] = "auto"
    layers: int | None = Field(None, gt=0)
    max_length: int = Field(128, ge=8)
    stride: int = Field(128, ge=0)
    head_hidden: int = Field(0, ge=0)
    dropout: float = Field(0.1, ge=0, lt=1)
    train: TrainSettings = TrainSettings()


class FinetuneSettings(Strict):
    """How a model is fine-tuned on one task: one run per learning rate, the best by validation loss.

    Attributes:
        learning_rates: the rates that are tried, instead of `train.lr`.
    """

    name: str
    summary: str
    source: str
    learning_rates: list[float] = Field(min_length=1)
    train: TrainSettings = TrainSettings()


STAGES: dict[str, type[Strict]] = {
    "distill": DistillSettings,
    "refine": RefineSettings,
    "finetune": FinetuneSettings,
}


def validate(model: type[Strict], values: Mapping[str, Any]) -> Any:
    """Build settings from plain values.

    Raises:
        UserError: the first thing wrong, with the key, the value and what is allowed.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _explain(model, values, error) from error


def _explain(model: type[BaseModel], given: Mapping[str, Any], error: ValidationError) -> UserError:
    first = error.errors()[0]
    # An error in a value that may be of several types also names the type ("float", "list[...]").
    where = [str(p) for p in first["loc"] if p not in ("float", "str") and "[" not in str(p)]
    key = ".".join(where)
    if first["type"] == "extra_forbidden":
        section = ".".join(where[:-1])
        if where[0] == "terms" and len(where) == 3:
            fields = _loss_settings(given["terms"][where[1]]["loss"]).model_fields
            return unknown("setting", key, [f"{section}.{field}" for field in fields])
        known = [name for name in _keys(model, given) if name not in _NOT_SET]
        beside = [name for name in known if name.startswith(f"{section}.")] if section else known
        near = beside if difflib.get_close_matches(key, beside, n=1, cutoff=0.5) else known
        return unknown("setting", key, near, hint="mtkd recipes show NAME --all prints the settings")
    if first["type"] == "missing":
        return UserError(f"the setting {key!r} is missing", hint=f"add `{key}=...`")
    if first["type"] == "unknown_loss":
        from mtkd.losses.registry import loss_classes

        return unknown(f"loss of {key}", first["input"]["loss"], loss_classes())
    return UserError(f"setting {key} = {first.get('input')!r}: {first['msg']}", hint=f"`{key}=...`")


_NOT_SET = ("name", "summary", "source")


def _keys(model: type[BaseModel], given: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every dotted key of a settings model; those of `student` by the kind that was given."""
    found = []
    for name, item in model.model_fields.items():
        inner = settings_class(given.get(name)) if name == "student" else item.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += _keys(inner, {}, f"{prefix}{name}.")
        elif name == "terms":
            found += [f"terms.NAME.{field}" for field in _term_keys()]
        elif name == "stages":
            found += [
                "stages.NAME.terms",
                *(f"stages.NAME.train.{key}" for key in TrainSettings.model_fields),
            ]
        else:
            found.append(prefix + name)
    return found


def _term_keys() -> list[str]:
    """The settings of all losses."""
    from mtkd.losses.registry import loss_classes

    return list(dict.fromkeys(key for loss in loss_classes().values() for key in loss.Settings.model_fields))
