"""Settings of a run: what there is to set, its defaults, and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from tasks.errors import UserError, unknown
from tasks.sampler import Mixing


class Strict(BaseModel):
    """Settings in which an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class BiLSTMSettings(Strict):
    """The student's sizes where it is a BiLSTM; the defaults are MKD's where the paper gives them.

    With seven task heads of 512 units the default has 9.9M parameters without the embeddings (the paper
    reports 10.2M; it leaves the sizes of embeddings, feed-forward and output open).

    Attributes:
        embedding_size: width of the word embeddings.
        projection_size: units of the feed-forward layer between embeddings and first BiLSTM.
        hidden_size: units of a BiLSTM in one direction.
        output_size: width of the pooled vector that the task heads read.
    """

    embedding_size: PositiveInt = 300
    projection_size: PositiveInt = 256
    hidden_size: PositiveInt = 256
    output_size: PositiveInt = 768


class TransformerSettings(Strict):
    """The student where it is a Transformer.

    `init`: "base" takes the first layers of the pretrained encoder that the teacher was refined from,
    "teacher" those of the teacher itself, "random" only the shape; anything else is a hub name or directory.
    """

    layers: int = Field(3, gt=0)
    init: str = "base"
    pooling: Literal["cls", "mean", "cls-of-layers"] = "cls-of-layers"


class StudentSettings(Strict):
    """Which student, how it reads text, and how its embeddings start.

    `vocabulary`: "wordpiece" is the teacher's own tokeniser; "word" builds a word-level vocabulary of at
    most `vocabulary_size` words from the training text.
    """

    kind: Literal["bilstm-biattention", "bilstm", "transformer"] = "bilstm-biattention"
    vocabulary: Literal["wordpiece", "word"] = "wordpiece"
    vocabulary_size: int = Field(60_000, gt=10)
    embeddings: Literal["random", "teacher"] = "random"
    max_length: int = Field(128, ge=8)
    head_hidden: int = Field(512, ge=0)
    dropout: float = Field(0.1, ge=0, lt=1)
    bilstm: BiLSTMSettings = BiLSTMSettings()
    transformer: TransformerSettings = TransformerSettings()


class LogitsMSESettings(Strict):
    loss: Literal["logits_mse"]
    weight: float = Field(1.0, ge=0)


class LabelsSettings(Strict):
    loss: Literal["labels"]
    weight: float = Field(1.0, ge=0)


class SoftLabelsSettings(Strict):
    loss: Literal["soft_labels"]
    weight: float = Field(1.0, ge=0)
    temperature: float = Field(1.0, gt=0)


class HiddenMSESettings(Strict):
    loss: Literal["hidden_mse"]
    weight: float = Field(1.0, ge=0)
    student_layer: int = Field(ge=0)
    teacher_layer: int = Field(ge=0)


TermSettings = Annotated[
    LogitsMSESettings | LabelsSettings | SoftLabelsSettings | HiddenMSESettings, Field(discriminator="loss")
]


class TrainSettings(Strict):
    """How the training loop runs.

    Attributes:
        batch_size: rows a step, over all processes.
        micro_batch: rows that go through the model at once on each process; None = all of its share.
        warmup: share of the steps in which the learning rate rises from 0.
        clip: gradient norm limit; None = none.
        precision: "bf16" runs the student under autocast.
        patience: epochs without a better `metric` before stopping; None = never.
        metric: "score" (mean of the tasks' scores), "loss", or "task/metric" such as "rte/accuracy".
        keep: "best" ends with the epoch that was best by `metric`, "last" with the last one.
        checkpoint_minutes: a checkpoint is written when the last one is so old, and after each epoch.
        checkpoint_steps: also write one every so many steps.
    """

    epochs: int = Field(3, gt=0)
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
    steps_per_epoch: int | None = Field(None, gt=0)
    metric: str = "score"
    keep: Literal["best", "last"] = "best"
    patience: int | None = Field(None, gt=0)
    checkpoint_minutes: float = Field(10.0, gt=0)
    checkpoint_steps: int | None = Field(None, gt=0)
    seed: int = Field(0, ge=0)


class TeacherSettings(Strict):
    """How the teacher answers: its precision, and whether its logits are computed once and kept."""

    precision: Literal["fp32", "bf16"] = "fp32"
    cache_logits: bool = True


class DistillSettings(Strict):
    """A distillation recipe.

    `supervision = "labels"` trains the same student on labels alone, without any teacher or corpus.
    """

    name: str
    summary: str
    source: str
    supervision: Literal["teacher", "labels"] = "teacher"
    student: StudentSettings = StudentSettings()
    terms: dict[str, TermSettings]
    train: TrainSettings = TrainSettings()
    teacher: TeacherSettings = TeacherSettings()


class RefineSettings(Strict):
    """How the multi-task teacher is trained.

    `pooling` "auto" is what the encoder's directory declares, else cls.
    """

    name: str
    summary: str
    source: str
    pooling: Literal["auto", "cls", "mean"] = "auto"
    layers: int | None = Field(None, gt=0)
    max_length: int = Field(128, ge=8)
    head_hidden: int = Field(0, ge=0)
    dropout: float = Field(0.1, ge=0, lt=1)
    train: TrainSettings = TrainSettings()


class FinetuneSettings(Strict):
    """How a model is fine-tuned on one task: one run for each learning rate, the best by validation loss."""

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
    # A union's error also names the member it took, here the loss.
    terms = given.get("terms")
    losses = [t.get("loss") for t in terms.values() if isinstance(t, dict)] if isinstance(terms, dict) else []
    where = [str(part) for part in first["loc"] if part not in losses]
    key = ".".join(where)
    if first["type"] == "extra_forbidden":
        section = ".".join(where[:-1])
        known = [name for name in _keys(model) if name not in _NOT_SET]
        beside = [name for name in known if name.startswith(f"{section}.")] if section else known
        near = beside if difflib.get_close_matches(key, beside, n=1, cutoff=0.5) else known
        return unknown("setting", key, near, mend="mtkd recipes show NAME --all prints the settings")
    if first["type"] == "missing":
        return UserError(f"the setting {key!r} is missing", mend=f"add --set {key}=...")
    return UserError(f"setting {key} = {first.get('input')!r}: {first['msg']}", mend=f"--set {key}=...")


_NOT_SET = ("name", "summary", "source")


def _keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every dotted key of a settings model."""
    found = []
    for name, item in model.model_fields.items():
        inner = item.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += _keys(inner, f"{prefix}{name}.")
        elif name == "terms":
            found += [
                f"terms.NAME.{field}"
                for field in ("loss", "weight", "temperature", "student_layer", "teacher_layer")
            ]
        else:
            found.append(prefix + name)
    return found
