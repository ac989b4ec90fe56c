"""What a task is: a frozen record that says everything the rest of the code needs to know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.task_types import TaskType


_SEQUENCES = ("columns", "labels", "metrics", "validation", "test", "groups")


@dataclass(frozen=True)
class Task:
    """One task: its columns, labels, metrics and where its rows come from.

    Attributes:
        name: the name used on the command line and in every file.
        kind: the name of its task type (`tasks.task_types`): `classify`, `regress`, `rank`, `span`, ..., or
            `text` (not a task: rows to read).
        columns: the text columns, one or two of them, in the order they are read; of `span` tasks the
            question, then the context.
        labels: class names in label-id order (`classify`, `rank`); empty for `regress`, `span`.
        label: the label column.
        range: lowest and highest allowed score (`regress`).
        group: the column whose equal values form one group of candidates (`rank`).
        positive: the label id of the right candidate (`rank`).
        metrics: names in its type's `metrics`; the task's score is their mean. By default those of its type.
        train, validation, test: split names; validation and test may have several
            (MNLI: matched and mismatched), train is None for a diagnostic set.
        head: the task whose head answers this one (ax: "mnli"); its own name by default.
        groups: the task sets it belongs to on the command line (`--tasks nli`).
        files: split -> file, relative to the data directory (own tasks; built-in ones have none).
        hub: (dataset, configuration) of the official copy, or None.
        submission: test split -> file name of GLUE's submission format.
        unanswerable: True if an answer may be "there is none in this context" (`span`).
        copies: masked copies a row that `mtkd augment mask` makes by default (MKD: 40 or 10).
    """

    name: str
    kind: str
    columns: tuple[str, ...]
    labels: tuple[str, ...] = ()
    label: str = "label"
    range: tuple[float, float] | None = None
    group: str | None = None
    positive: int = 0
    metrics: tuple[str, ...] = ()
    train: str | None = "train"
    validation: tuple[str, ...] = ("validation",)
    test: tuple[str, ...] = ("test",)
    head: str = ""
    groups: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    hub: tuple[str, str] | None = None
    submission: Mapping[str, str] = field(default_factory=dict)
    unanswerable: bool = False
    copies: int = 10

    def __post_init__(self) -> None:
        for name in _SEQUENCES:
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.head:
            object.__setattr__(self, "head", self.name)
        if not self.metrics:
            object.__setattr__(self, "metrics", self.type.default_metrics)

    @property
    def type(self) -> TaskType:
        """What tasks of this kind have in common: labels, head, losses, predictions, metrics.

        Raises:
            UserError: unknown kind.
        """
        from tasks.task_types import task_type

        return task_type(self.kind)

    @property
    def splits(self) -> tuple[str, ...]:
        """Every split that the task may have, train first."""
        return (*([self.train] if self.train else []), *self.validation, *self.test)

    def to_json(self) -> dict[str, Any]:
        """The task as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Task:
        """The task that `to_json` wrote."""
        known = {item.name for item in fields(cls)}
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in value.items() if k in known
        }
        return cls(**values)
