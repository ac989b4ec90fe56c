"""The JSON files beside a model's weights: model.json of a saved model, export.json of an exported one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, FiniteFloat
from typing_extensions import TypedDict

from tasks.common.errors import UserError, brief
from tasks.common.files import is_plain_path
from tasks.common.reading import real_path
from tasks.common.records import Count, Dropout, Record, Size, Text, Width, check_record, read_record
from tasks.task import Task
from tasks.task_file import check_task
from tasks.tokens.reader import InputFormat

EXPORT = "export.json"
FORMAT, EXPORT_FORMAT = 3, 1
EXPORT_AGAIN = "export the model again"  # a hint


class SavedScores(TypedDict):
    """The recorded scores of a task on one split; see `mtkd.evaluation.scoring.TaskScores`."""

    task: str
    split: str
    rows: Count
    metrics: dict[str, FiniteFloat]
    primary: FiniteFloat
    majority: Annotated[float, Field(allow_inf_nan=True)]  # NaN for plain text, which has no labels
    loss: FiniteFloat
    details: NotRequired[dict[str, FiniteFloat]]
    threshold: NotRequired[Any]


@dataclass
class ModelInfo(Record):
    """What is saved with a model besides its weights.

    Attributes:
        max_length: rows are truncated to this many tokens (each text of a row, if the encoder reads the texts
            separately).
        stride: the number of tokens that neighbouring windows of a long context share (`span` tasks).
        head_hidden_size: the width of the heads' hidden layer; 0 = a single linear layer.
        dropout: the dropout probability in the heads.
        pair_head: "linear", or "san" if classification tasks with two texts have a `SANHead`.
        base: the pretrained encoder that training started from; None = random weights.
        scores: task -> recorded validation scores (see `mtkd.evaluation.scoring`).
        data: the name of the data that the model was trained on, such as "hub"; None = unknown.
        thresholds: task -> its decision threshold, if its scores were removed.
    """

    max_length: Size = 128
    head_hidden_size: Width = 512
    dropout: Dropout = 0.1
    base: str | None = None
    scores: dict[str, SavedScores] = field(default_factory=dict)
    stride: Count = 128
    pair_head: Literal["linear", "san"] = "linear"
    data: str | None = None
    thresholds: dict[str, Any] = field(default_factory=dict)

    @property
    def known_thresholds(self) -> dict[str, Any]:
        """Task -> its decision threshold, from its scores on the first split that has one."""
        recorded = {scores["task"]: scores.get("threshold") for scores in reversed(self.scores.values())}
        return self.thresholds | {task: value for task, value in recorded.items() if value is not None}

    def without_scores(self) -> ModelInfo:
        """The same for a model whose weights have changed since they were scored; it keeps the thresholds."""
        return replace(self, scores={}, thresholds=self.known_thresholds)


@dataclass(frozen=True)
class NearbyFile(Record):
    """Where a task's file is, as seen from the model, so that both can be moved together.

    Attributes:
        path: the file, relative to the innermost directory that contains the file and the model.
        bytes: the size of the file.
    """

    path: Text
    bytes: Count


@dataclass(kw_only=True)
class ModelFile(ModelInfo):
    """model.json: the description of a saved model.

    Attributes:
        encoder: the encoder's configuration, which `mtkd.models.encoders` checks.
        nearby: the absolute path of a task's file, when the model was saved -> where it is.
    """

    format: Count
    encoder: dict[str, Any]
    tasks: tuple[Task, ...]
    nearby: dict[Text, NearbyFile] = field(default_factory=dict)


def nearby_files(directory: Path, tasks: Iterable[Task]) -> dict[str, dict[str, Any]]:
    """The value `nearby` for a model that is saved in a directory."""
    here, found = real_path(directory), dict[str, dict[str, Any]]()
    for file in {file for task in tasks for file in task.files.values() if os.path.isabs(file)}:
        if os.path.isfile(file):
            path = os.path.relpath(file, os.path.commonpath([here, file]))
            found[file] = vars(NearbyFile(path, os.path.getsize(file)))
    return dict(sorted(found.items()))


def _at_current_paths(task: Task, nearby: Mapping[str, NearbyFile], directory: Path) -> Task:
    """The task with the current paths of its files, if they were moved together with the model."""
    files = dict(task.files)
    for split, file in task.files.items():
        if file in nearby and not os.path.exists(file):
            found = nearby[file]
            paths = [str(folder / found.path) for folder in real_path(directory).parents]
            moved = (path for path in paths if os.path.isfile(path) and os.path.getsize(path) == found.bytes)
            files[split] = next(moved, file)
    return replace(task, files=files) if files != task.files else task


@dataclass(frozen=True)
class _Graph(Record):
    """An ONNX graph of an export.

    Attributes:
        texts: how many texts of a row the graph reads as separate inputs; None = it reads all texts of a row
            as one sequence.
    """

    file: Text
    texts: Literal[1, 2] | None


@dataclass(frozen=True)
class _Tokeniser(Record):
    """What `mtkd.runtime.SavedTokeniser` needs besides tokenizer.json."""

    pad: str
    unk: str
    mask: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class _Export(Record):
    """export.json: the description of an exported model.

    Attributes:
        side_by_side: the heads of tasks that are read by a bi-encoder, if `input_format` is "joined".
    """

    format: Literal[1]
    input_format: InputFormat
    tokeniser: _Tokeniser
    graphs: tuple[_Graph, ...]
    files: dict[Text, str]
    side_by_side: tuple[Text, ...] = ()
    mtkd: Any = None
    source: Any = None
    parameters: dict[str, Count] = field(default_factory=dict)
    int8: dict[str, Any] | None = None
    difference: FiniteFloat = 0.0
    scores: dict[str, Any] = field(default_factory=dict)


def refuse_export(name: str | Path, use: str) -> None:
    """Raise UserError if this is the directory of an export; `use`: see `exported`."""
    if (Path(name) / EXPORT).is_file():
        raise exported(f"{name} is an exported model", use)


def exported(model: str, use: str) -> UserError:
    """The error for an exported model that was given in place of one that can be trained.

    Args:
        model: the start of the message.
        use: what the model cannot be, such as "a teacher".
    """
    return UserError(
        f"{model}, which cannot be {use}",
        expected="a model that torch can load, not ONNX graphs",
        hint="use the run that it was exported from",
    )


def read_export(directory: Path) -> dict[str, Any]:
    """Read export.json.

    Raises:
        UserError: there is no export.json, it is damaged, or another version of mtkd wrote it.
    """
    if not (directory / EXPORT).is_file():
        raise UserError(f"{directory} is not an mtkd export", expected="a directory that `mtkd.export` wrote")
    record = read_record(directory / EXPORT, dict[str, Any], hint=EXPORT_AGAIN)
    if record.get("format", EXPORT_FORMAT) != EXPORT_FORMAT:
        raise UserError(f"{directory} was exported by another version of mtkd", hint=EXPORT_AGAIN)
    check_record(record, _Export, str(directory / EXPORT), hint=EXPORT_AGAIN)
    for name in (*record["files"], *(graph["file"] for graph in record["graphs"])):
        if not is_plain_path(name):
            raise UserError(
                f"{directory / EXPORT} names the file {name!r}, which is not in {directory}",
                hint=EXPORT_AGAIN,
            )
    return record


def read_model_file(directory: Path) -> ModelFile:
    """Read the model.json of a directory.

    Raises:
        UserError: there is no model.json, it is damaged, or another version of mtkd wrote it.
    """
    file, hint = directory / "model.json", "train or export the model again"
    format_version = read_record(file, dict[str, Any], hint=hint).get("format")
    if type(format_version) is int and format_version != FORMAT:
        newer = format_version > FORMAT
        raise UserError(
            f"{directory} was written by {'a newer' if newer else 'an older'} version of mtkd",
            hint="upgrade mtkd" if newer else "train the model again with this version",
        )
    model_file = read_record(file, ModelFile, hint=hint)
    for task in model_file.tasks:
        check_task(task, f"{file}, task")
    model_file.tasks = tuple(_at_current_paths(t, model_file.nearby, directory) for t in model_file.tasks)
    _check_thresholds(model_file, file, hint)
    return model_file


def _check_thresholds(model_file: ModelFile, file: Path, hint: str) -> None:
    """Check the recorded thresholds of tasks that have one."""
    by_name = {task.name: task for task in model_file.tasks}
    recorded = [
        (f"scores.{name}.threshold", scores["task"], scores.get("threshold"))
        for name, scores in model_file.scores.items()
    ]
    recorded += [(f"thresholds.{name}", name, value) for name, value in model_file.thresholds.items()]
    for key, name, threshold in recorded:
        task = by_name.get(name)
        if task is None or threshold is None or not task.type.has_threshold(task):
            continue
        if expected := task.type.threshold_problem(task, threshold):
            problem = f"{file}: {key} = {brief(threshold)} is not valid"
            raise UserError(problem, expected=expected, hint=hint)
