"""The definition of a task: a frozen record with everything that the rest of the code needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from tasks.common.argument_markers import Expected
from tasks.common.arguments import check_fields, suggests_fields
from tasks.common.errors import unknown
from tasks.common.records import Count, Name, Record, Text, check_record

if TYPE_CHECKING:
    from tasks.task_types import TaskType


_SEQUENCES = ("columns", "labels", "metrics", "validation", "test", "groups", "unlabelled", "languages")

MAX_COPIES = 100_000  # of a row
MAX_ANSWER_TOKENS = 512  # the largest `Task.max_answer_tokens`
UNLABELLED = "unlabelled"  # the split of unlabelled rows


def _paths_as_text(value: Any) -> Any:
    """A value with text in place of paths, also of those in a list or mapping."""
    if isinstance(value, Mapping):
        return {key: _paths_as_text(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_paths_as_text, value))
    return str(value) if isinstance(value, PurePath) else value


@suggests_fields
@dataclass(frozen=True)
class Task(Record):
    """One task: its columns, labels, metrics and the origin of its rows.

    A single text stands for a tuple of one, as in `columns="text"`.

    Attributes:
        name: the name on the command line and in files.
        kind: the name of its task type (`tasks.task_types`): `classify`, `regress`, `rank`, `span`, ..., or
            `text` for plain text without a task.
        columns: one or two text columns, in reading order; for `span` tasks the question, then the context.
        labels: class names in label-id order (`classify`, `rank`); empty for `regress`, `span`.
        label: the label column.
        range: lowest and highest allowed score (`regress`).
        group: the column whose equal values form one group of candidates (`rank`).
        positive: the label of the right candidate (`rank`): a name or an id; a name becomes the id.
        metrics: metrics of its task type, whose mean is the task's score; by default those of the type.
        train, validation, test: split names. There may be several validation and test splits (MNLI: matched
            and mismatched); `train` is None for a diagnostic set.
        head: the task whose head predicts this one (ax: "mnli"); by default its own name.
        map: label of that head -> label of this task; the probabilities of labels that become the same one
            are added up (`tasks.model_tasks`). Empty if both have the same labels.
        groups: the groups of tasks that it belongs to on the command line (`--tasks nli`).
        files: split -> file, relative to the data directory; empty for built-in tasks.
        unlabelled: files or patterns of files of unlabelled rows, relative to the data directory.
        hub: (dataset, configuration) of the official copy, or None; `{language}` in the configuration stands
            for the language of a split.
        submission: test split -> file name of GLUE's submission format.
        unanswerable: True if a context may not contain the answer (`span`).
        max_answer_tokens: maximum number of tokens of a predicted answer (`span`).
        soft_labels: the column of the training rows with a teacher's probabilities or logits
            (`tasks.data.soft_labels`); None = there is none.
        soft_labels_kind: "probabilities" or "logits"; None = decided from the values.
        copies: masked copies per row that `mtkd augment mask` makes by default (MKD: 40 or 10).
        languages: ISO 639-1 codes. A split whose name ends in one (`validation_de`) is in that language,
            others are in the first. Answers of `span` tasks are compared by language (`tasks.scoring.squad`).
        trained_on: the built-in task whose training rows are used if there are none of its own (mlqa: squad).
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = Record.__pydantic_config__ | {"extra": "ignore"}

    name: Name
    kind: Text
    columns: tuple[Text, ...]
    labels: tuple[str, ...] = ()
    label: Text = "label"
    range: tuple[float, float] | None = None
    group: str | None = None
    positive: Annotated[Count, Expected("the name or the id of a label")] = 0
    metrics: tuple[str, ...] = ()
    train: str | None = "train"
    validation: tuple[str, ...] = ("validation",)
    test: tuple[str, ...] = ("test",)
    head: str = ""
    map: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    unlabelled: tuple[str, ...] = ()
    hub: tuple[str, str] | None = None
    submission: Mapping[str, str] = field(default_factory=dict)
    unanswerable: bool = False
    max_answer_tokens: Annotated[int, Field(ge=1, le=MAX_ANSWER_TOKENS)] = 30
    copies: Annotated[int, Field(ge=0, le=MAX_COPIES)] = 10
    soft_labels: str | None = None
    soft_labels_kind: str | None = None
    languages: tuple[str, ...] = ()
    trained_on: str = ""

    def __hash__(self) -> int:
        return hash((self.name, self.kind, self.columns, self.labels))  # mappings have no hash

    def __post_init__(self) -> None:
        for name in _SEQUENCES:
            if isinstance(value := getattr(self, name), str | PurePath):
                object.__setattr__(self, name, (value,))
        for name in ("files", "unlabelled"):
            object.__setattr__(self, name, _paths_as_text(getattr(self, name)))
        positive: Any = self.positive
        if isinstance(positive, str):  # the name of a label, as in task files; labels are checked first
            object.__setattr__(self, "positive", 0)
        check_fields(self)
        if isinstance(positive, str):
            if positive not in self.labels:
                raise unknown(f"positive label of the task {self.name!r}:", positive, self.labels)
            object.__setattr__(self, "positive", self.labels.index(positive))
        if not self.head:
            object.__setattr__(self, "head", self.name)
        if not self.metrics:
            object.__setattr__(self, "metrics", self.type.default_metrics)

    @property
    def type(self) -> TaskType:
        """The task type: labels, head, losses, predictions and metrics of tasks of this type.

        Raises:
            UserError: unknown task type.
        """
        from tasks.task_types import task_type

        return task_type(self.kind)

    @property
    def splits(self) -> tuple[str, ...]:
        """All splits that the task may have, train first."""
        return (*([self.train] if self.train else []), *self.validation, *self.test)

    def language(self, split: str) -> str | None:
        """The language of a split; None if the task names no languages."""
        ending = split.rpartition("_")[2]
        return ending if ending in self.languages else next(iter(self.languages), None)

    def on_hub(self, split: str) -> tuple[str, str, str] | None:
        """Data set, configuration and split of a split on the hub; None if it is not there."""
        if self.hub is None or (self.trained_on and split == self.train):
            return None
        language = self.language(split) or ""
        dataset, configuration = self.hub
        return dataset, configuration.replace("{language}", language), split.removesuffix(f"_{language}")

    def has_soft_labels(self, split: str) -> bool:
        """True if the rows of a split have soft labels, so that they need no other labels."""
        return self.soft_labels is not None and split == self.train

    def may_be_unlabelled(self, split: str) -> bool:
        """True if rows of a split may lack labels: test rows, and training rows with soft labels."""
        return split in self.test or self.has_soft_labels(split)

    def to_json(self) -> dict[str, Any]:
        """The task as plain JSON values, without some keys at their default: digests are older than these."""
        newer = {"map": {}, "max_answer_tokens": 30}
        return {k: v for k, v in asdict(self).items() if k not in newer or v != newer[k]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Task:
        """The inverse of `to_json`.

        Raises:
            UserError: the values are not those of a task.
        """
        return check_record(value, cls, "the task")
