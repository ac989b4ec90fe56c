"""The validated rows of a run: training rows with their augmented copies, and validation rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mtkd.jobs.request import Request
from mtkd.jobs.training_corpus import add_corpora
from tasks.checks.data_quality import MAX_TRUNCATED_SHARE, truncation_message
from tasks.checks.label_warnings import label_warnings
from tasks.checks.overlap import overlap_warnings, trained_warnings
from tasks.checks.span_lengths import span_length_warnings
from tasks.common.errors import UserError, counted
from tasks.data.loading import digest_rows, sample_rows
from tasks.data.rows import Rows, has_label
from tasks.data.training_rows import training_rows, validation_rows
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import UNLABELLED, Task
from tasks.task_names import resolve
from tasks.tokens.encoding import Encoded
from tasks.tokens.reader import Reader
from tasks.tokens.tokeniser import Tokeniser


@dataclass(frozen=True)
class TaskData:
    """The rows of one task.

    Attributes:
        train: the training rows: those of the training split, then those of a corpus, then unlabelled rows.
        validation: split -> rows.
        unlabelled: how many of the training rows are unlabelled rows; they are the last ones. Rows are
            counted before they are cut into windows.
        corpora: how many of them are rows of corpora, by kind ("copies" or "questions").
    """

    task: Task
    train: Rows
    validation: Mapping[str, Rows]
    unlabelled: int = 0
    corpora: Mapping[str, int] = field(default_factory=dict)

    def describe(self) -> str:
        """How many rows of each kind there are to train on, for users. Call it before `for_reader`."""
        own_rows = len(self.train) - self.unlabelled - sum(self.corpora.values())
        labelled = int(has_label(self.train.labels[:own_rows]).sum())
        others = {"with soft labels only" if self.task.soft_labels else "unlabelled": own_rows - labelled}
        others["unlabelled"] = others.get("unlabelled", 0) + self.unlabelled
        counts = [f"{count:,} {kind}" for kind, count in (others | dict(self.corpora)).items() if count]
        return ", ".join([f"{self.task.name}: {counted(labelled, 'labelled row')}", *counts])


@dataclass(frozen=True)
class TrainingData:
    """The rows of a run.

    Attributes:
        parts: one entry per task.
        digests: "task/split" -> SHA-256 of the rows.
        warnings: about labels, rows that several splits share, and data that is not used.
    """

    parts: list[TaskData]
    digests: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def tasks(self) -> dict[str, Task]:
        """The tasks by name, in the order of the request."""
        return {part.task.name: part.task for part in self.parts}

    def require_labels(self, job: str) -> None:
        """Check that every task has labelled training rows.

        Args:
            job: what needs them, for the message.

        Raises:
            UserError: no training row of a task has a label; they may have soft labels.
        """
        for part in self.parts:
            if not has_label(part.train.labels).any():
                kind = "only soft labels" if part.task.soft_labels else "no labels"
                raise UserError(
                    f"the training rows of {part.task.name!r} have {kind}, but {job} learns from labels",
                    expected=f"rows with a value in the column {part.task.label!r}",
                    hint="mtkd distill learns from soft labels, and from a teacher",
                )

    @property
    def validation(self) -> dict[tuple[str, str], Rows]:
        """(task, split) -> validation rows."""
        return {
            (part.task.name, split): rows for part in self.parts for split, rows in part.validation.items()
        }

    def summary(self) -> dict[str, dict[str, int]]:
        """The number of training rows, unlabelled training rows and validation rows of each task."""
        return {
            part.task.name: {
                "train": len(part.train),
                "unlabelled": int((~has_label(part.train.labels)).sum()),
                "validation": sum(len(rows) for rows in part.validation.values()),
            }
            for part in self.parts
        }

    @property
    def n_train(self) -> int:
        """The number of training rows of all tasks."""
        return sum(len(part.train) for part in self.parts)

    def for_reader(self, reader: Reader) -> TrainingData:
        """The same data, with training rows in the form that a model reads (`Reader.rows`)."""
        parts = [replace(part, train=reader.rows(part.train)) for part in self.parts]
        return replace(self, parts=parts)

    @property
    def window_warnings(self) -> list[str]:
        """A warning for each task with answers that no window contains completely.

        Call it after `for_reader`, which cuts the training rows into windows.
        """
        warnings = []
        for task_data in self.parts:
            windows = task_data.train.windows
            if windows is not None and len(windows.lost):
                first_row = windows.whole_rows.uids[int(windows.lost[0])].as_py()
                are = "is" if len(windows.lost) == 1 else "are"
                warnings.append(
                    f"{counted(len(windows.lost), 'answer')} of {task_data.task.name} {are} in no window of "
                    f"{windows.max_length} tokens, so their rows are not used (the first is {first_row}). "
                    "Use a larger max_length."
                )
        return warnings


class EncodedRows:
    """The rows of a run as token ids. Each split is tokenised once per tokeniser and window size."""

    def __init__(self, data: TrainingData):
        self.data = data
        self._encoded: dict[tuple[Any, ...], Encoded] = {}

    def for_reader(self, reader: Reader) -> EncodedRows:
        """The same rows, with training rows cut into a model's windows; the cache of token ids is shared."""
        rows = EncodedRows(self.data.for_reader(reader))
        rows._encoded = self._encoded
        return rows

    def train(
        self, reader: Reader, teacher: Tokeniser | None = None, only: Collection[str] | None = None
    ) -> dict[str, Encoded]:
        """Task -> training rows as token ids.

        Args:
            teacher: the teacher's tokeniser, to add its token ids if it differs.
            only: the tasks to return; None = all.
        """
        rows_by_task = {}
        for task_data in self.data.parts:
            if only is not None and task_data.task.name not in only:
                continue
            rows = self._encode(task_data.train, reader)
            if teacher is not None and teacher.digest != reader.tokeniser.digest and rows.windows is None:
                teacher_rows = self._encode(task_data.train, replace(reader, tokeniser=teacher))
                rows = replace(rows, teacher=teacher_rows.texts)
            rows_by_task[task_data.task.name] = rows
        return rows_by_task

    def validation(
        self, reader: Reader, only: Collection[str] | None = None
    ) -> dict[tuple[str, str], Encoded]:
        """(task, split) -> validation rows of all tasks, or only of some, as token ids."""
        return {
            key: self._encode(rows, reader)
            for key, rows in self.data.validation.items()
            if only is None or key[0] in only
        }

    def cut_warnings(self, reader: Reader, setting: str = "max_length") -> list[str]:
        """A warning for each task in which the reader truncates more than a few per cent of the rows.

        For `span` tasks, warnings about questions and answers that are too long.

        Args:
            setting: the name of the setting that limits the number of tokens.
        """
        warnings, tasks = [], {part.task.name: part.task for part in self.data.parts}
        per = " per text" if reader.input_format == "separate" else ""
        for name, rows in self.train(reader).items():
            if rows.windows is not None:
                warnings += span_length_warnings(tasks[name], rows, reader.tokeniser)
                continue
            if (share := float(reader.for_task(name).is_truncated(rows.texts).mean())) > MAX_TRUNCATED_SHARE:
                most = f"{reader.max_length:,} tokens{per}"
                warnings.append(truncation_message(f"the training rows of {name}", share, most, setting))
        return warnings

    def _encode(self, rows: Rows, reader: Reader) -> Encoded:
        key: tuple[Any, ...] = (rows.task, rows.split, reader.tokeniser.digest)
        if rows.answers is not None and rows.windows is None:  # the rows are cut into windows
            key += (reader.max_length, reader.stride)
        if key not in self._encoded:
            self._encoded[key] = Encoded.encode(reader.rows(rows), reader.tokeniser)
        return self._encoded[key]


def trainable_tasks(spec: str | Sequence[Task], data: Any = None) -> list[Task]:
    """Resolve tasks, each of which must have a training split and a head of its own; `data`: see `resolve`.

    Raises:
        UserError: a task is unknown, has no training split (such as ax), maps the labels of another task, or
            shares its head with another one.
    """
    tasks = resolve(spec, data=data) if isinstance(spec, str) else list(spec)
    for task in tasks:
        if task.train is None:
            raise UserError(
                f"the task {task.name!r} has no training split"
                + (f"; it evaluates models trained on {task.head!r}" if task.head != task.name else ""),
                hint="name a file of training rows (train = 'FILE') or of rows without labels (unlabelled = "
                "'FILE') under [files] in its task file"
                if task.head == task.name and task.files
                else f"train with `tasks={task.head!r}`, then `mtkd.evaluate(tasks={task.name!r}, ...)`",
            )
        if task.map:
            raise UserError(
                f"the task {task.name!r} has no head of its own: `map` changes the labels of {task.head!r}",
                hint="leave head and map out of its task file to train a head",
            )
        if other := next(
            (candidate for candidate in tasks if candidate.head == task.head and candidate.name != task.name),
            None,
        ):
            raise UserError(
                f"the tasks {task.name!r} and {other.name!r} share the head {task.head!r}",
                hint="leave head out of the task file, or train on one of them",
            )
    return tasks


def load_training_data(
    request: Request,
    tasks: list[Task],
    corpora: Sequence[Path] = (),
    unlabelled: UnlabelledRequest | None = None,
) -> TrainingData:
    """Read and validate all rows of a run.

    Args:
        corpora: augmented corpora whose copies or questions are added to the training rows.
        unlabelled: which unlabelled rows are added to the training rows; None = none.

    Raises:
        UserError: invalid data; a task without validation rows; a corpus that has none of the tasks or was
            made from other rows.
    """
    source = request.source()
    parts = []
    digests = {}
    warnings = []
    for task in tasks:
        all_rows = training_rows(source, task, unlabelled)
        train = sample_rows(all_rows, request.limit)
        train, counts = add_corpora(corpora, source, tasks, task, all_rows, train, unlabelled)
        validation = validation_rows(source, task, request.eval_limit)
        warnings += label_warnings(source, task, all_rows, {} if request.eval_limit else validation)
        warnings += trained_warnings(all_rows, validation)
        for rows in (train, *validation.values()):
            digests[f"{task.name}/{rows.split}"] = digest_rows(rows)
        train, added = unlabelled.append(source, task, train) if unlabelled else (train, 0)
        if unlabelled and added:
            added_rows = train.slice(len(train) - added, len(train))
            digests[f"{task.name}/{UNLABELLED}"] = digest_rows(added_rows)
            warnings += overlap_warnings(source, task, added_rows, unlabelled.split_of(task))
        if not len(all_rows):
            warnings.append(
                f"{source.missing(task, all_rows.split).problem}: the student learns from the "
                f"{counted(added, 'unlabelled row')} of this task alone"
            )
        parts.append(TaskData(task, train, validation, added, counts))
    splits = [(part.task, split) for part in parts for split in (part.train.split, *part.validation)]
    if ignored := source.outside_warning(splits):
        warnings.append(ignored)
    return TrainingData(parts, digests, warnings)
