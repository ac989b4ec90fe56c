"""The contents of run.json and result.json, which are validated when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NotRequired, cast

from pydantic import ConfigDict, FiniteFloat, with_config
from typing_extensions import TypedDict

from mtkd.model_files import SavedScores
from tasks.common.errors import UserError
from tasks.common.records import Count, Seed, Size, read_record
from tasks.common.text_format import score_text

RUN_FILE = "run.json"
_FINISHED = ("identity", "versions", "machine", "parameters", "scores", "training")  # keys of a finished run
_NOT_WATCHED = ("epoch", "train_loss", "scores")  # keys of an epoch's record, besides the watched metric
_open_record = with_config(ConfigDict(extra="allow", allow_inf_nan=False))


@_open_record
class _Train(TypedDict, total=False):
    seed: Seed


@_open_record
class _Stage(TypedDict, total=False):
    terms: list[str]
    train: dict[str, Any]


@_open_record
class _Term(TypedDict):
    loss: str


@_open_record
class _Settings(TypedDict, total=False):
    name: str
    train: _Train
    supervision: str
    terms: dict[str, _Term]
    stages: dict[str, _Stage]
    run_stages: list[str]
    student: dict[str, Any]


@_open_record
class _Identity(TypedDict, total=False):
    command: str
    settings: _Settings
    data: str | list[str] | None
    teacher: str | dict[str, Any] | list[Any] | None
    model: str | dict[str, Any] | None
    limit: Size | None
    eval_limit: Size | None


@_open_record
class _Epoch(TypedDict):
    """Also holds the watched metric, by its name."""

    epoch: Count
    scores: NotRequired[dict[str, FiniteFloat]]


@_open_record
class _Training(TypedDict):
    steps: Count
    epochs: NotRequired[Count]
    seconds: NotRequired[FiniteFloat]
    kept_epoch: NotRequired[Count | None]
    history: NotRequired[list[_Epoch]]


class StageResult(TypedDict):
    """The result.json of a stage: a `TrainingResult`, and what else was found during training."""

    steps: Count
    epochs: Count
    best: FiniteFloat | None
    history: list[_Epoch]
    seconds: FiniteFloat
    kept_epoch: NotRequired[Count | None]
    facts: NotRequired[dict[str, Any]]


class TrialResult(TypedDict):
    """The result.json of a learning rate of `finetune`, with the value of the watched metric."""

    value: FiniteFloat
    scores: dict[str, SavedScores]
    training: StageResult


@_open_record
class _Parameters(TypedDict):
    total: Count
    embeddings: Count
    without_embeddings: Count


class _Rows(TypedDict):
    train: Count
    unlabelled: Count
    validation: Count


@_open_record
class _Record(TypedDict, total=False):
    status: Literal["running", "finished"]
    identity: _Identity
    versions: dict[str, str]
    data: dict[str, str] | str | None
    machine: str
    parameters: _Parameters
    scores: dict[str, SavedScores]
    training: dict[str, _Training] | _Training
    rows: dict[str, _Rows]
    warnings: list[str]
    command_line: str | None


def read_run_record(file: Path, *required: str) -> dict[str, Any]:
    """Read a run.json.

    Args:
        required: dotted keys that it must have, in addition to those of every finished run.

    Raises:
        UserError: it is missing or damaged.
    """
    hint = "train the run again with this version, or leave it out"
    record = cast(dict[str, Any], read_record(file, cast(Any, _Record), hint=hint))
    is_finished = record.get("status") == "finished"
    for key in (*(_FINISHED if is_finished else ()), *required):
        part: Any = record
        for name in key.split("."):
            part = part.get(name) if isinstance(part, dict) else None
        if part is None:
            raise UserError(f"{file} lacks the key {key!r}", hint=hint)
    return record


def kept_weights(record: dict[str, Any]) -> list[str]:
    """A sentence for each stage of a finished run that kept the best of several weights."""
    training, sentences = record["training"], []
    train = record.get("identity", {}).get("settings", {}).get("train", {})
    precision = " in bf16" if train.get("precision") == "bf16" else ""  # final scores are in fp32
    for name, stage in ({"": training} if "steps" in training else training).items():
        kept, epochs = stage.get("kept_epoch"), stage.get("epochs", 0)
        history = stage.get("history", [])
        if kept is None or sum("scores" in values for values in history) < 2:
            continue
        values = next(values for values in history if values["epoch"] == kept)
        metric = next(key for key in values if key not in _NOT_WATCHED)
        which = f"of epoch {kept} of {epochs}" if kept else "from before training, because no epoch is better"
        text = (
            f"kept the weights {which} (validation {metric} {score_text(values[metric], metric)}{precision})."
        )
        sentences.append(f"Stage {name}: {text}" if name else text[0].upper() + text[1:])
    return sentences


def start_scores(record: dict[str, Any]) -> dict[str, float]:
    """The scores of a finished run before training, "task/split" -> score; empty if there are none."""
    history = record.get("training", {}).get("history", [])
    return next((values["scores"] for values in history if values["epoch"] == 0), {})
