"""The rows of one split of one task, stored by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ANSWERS = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))])


@dataclass(frozen=True, eq=False)
class Windows:
    """Where w windows of `span` rows were cut from (`tasks.span_windows.cut_windows`).

    Attributes:
        examples: the original rows.
        row: (w,) int64, the example of each window.
        begin: (w,) int64, the character offset of the window in the example's context.
        answers: (w, 2) int64, the answer's first character in the window and the one after its last; -1 if
            the window has no answer, -2 if that is unknown.
        question: maximum number of question tokens.
        max_length: maximum number of tokens of a window.
        lost: examples whose answer is in no window.
    """

    examples: Rows
    row: np.ndarray
    begin: np.ndarray
    answers: np.ndarray
    question: int
    max_length: int
    lost: np.ndarray

    def take(self, indices: np.ndarray) -> Windows:
        """The windows at `indices`, in that order."""
        parts = {"row": self.row[indices], "begin": self.begin[indices], "answers": self.answers[indices]}
        return replace(self, **parts)


@dataclass(frozen=True)
class Rows:
    """Rows of one task, by column; every column has the same length n.

    Attributes:
        task: the task's name.
        split: the split they come from ("train", "validation_matched", "corpus", ...).
        uids: n unique names, "task/split/number" (masked copies: "…#copy").
        texts: one string array per text column (one or two).
        labels: (n,) or (n, K) float64, in the form that the task type defines: a class id, a score, 1 or 0
            for an answer or none (`span`), ...; NaN = unlabelled.
        groups: (n,) int64 ids of the candidate groups (`rank` tasks), or None.
        answers: n structs {text, answer_start} of lists, null = unlabelled (`span` tasks), or None.
        windows: for windows of `span` rows, where they were cut from.
        soft: (n, C) float64, the rows' soft labels as logits (`tasks.soft_labels`), or None.
    """

    task: str
    split: str
    uids: pa.StringArray
    texts: tuple[pa.StringArray, ...]
    labels: np.ndarray
    groups: np.ndarray | None = None
    answers: pa.StructArray | None = None
    windows: Windows | None = None
    soft: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.uids)

    @property
    def labelled(self) -> bool:
        """True if every row has a label."""
        return bool(has_label(self.labels).all())

    def slice(self, start: int, stop: int) -> Rows:
        """The rows from `start` up to `stop`, without copying; rows cut into windows cannot be sliced."""
        assert self.windows is None, "windows refer to whole examples"
        count = stop - start
        return Rows(
            self.task,
            self.split,
            self.uids.slice(start, count),
            tuple(text.slice(start, count) for text in self.texts),
            self.labels[start:stop],
            None if self.groups is None else self.groups[start:stop],
            None if self.answers is None else self.answers.slice(start, count),
            soft=None if self.soft is None else self.soft[start:stop],
        )

    def take(self, indices: np.ndarray) -> Rows:
        """The rows at `indices`, in that order."""
        where = pa.array(indices)
        return Rows(
            self.task,
            self.split,
            self.uids.take(where),
            tuple(text.take(where) for text in self.texts),
            self.labels[indices],
            None if self.groups is None else self.groups[indices],
            None if self.answers is None else self.answers.take(where),
            None if self.windows is None else self.windows.take(indices),
            None if self.soft is None else self.soft[indices],
        )


def row_keys(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """One string per row of some columns; two are equal if and only if the rows agree in every column."""
    parts = []
    for column in columns:
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        values = values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
        text = values.cast(pa.large_string()).fill_null("")
        parts += [pc.binary_length(text).cast(pa.large_string()), text]
    return pc.binary_join_element_wise(*parts, pa.scalar(":", pa.large_string()))


def concat(parts: list[Rows]) -> Rows:
    """Concatenate rows of one task, with the split name of the first part.

    Groups, answers and soft labels are kept only if all parts have them. Concatenate `span` rows before
    cutting windows.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    groups = [part.groups for part in parts if part.groups is not None]
    answers = [part.answers for part in parts if part.answers is not None]
    soft = [part.soft for part in parts if part.soft is not None]
    return Rows(
        first.task,
        first.split,
        pa.concat_arrays([part.uids for part in parts]),
        tuple(
            pa.concat_arrays(list(columns)) for columns in zip(*(part.texts for part in parts), strict=True)
        ),
        _concat_labels([part.labels for part in parts]),
        np.concatenate(groups) if len(groups) == len(parts) else None,
        pa.concat_arrays(answers) if len(answers) == len(parts) else None,
        soft=np.concatenate(soft) if len(soft) == len(parts) else None,
    )


def has_label(labels: np.ndarray) -> np.ndarray:
    """(n,) bool, True for rows that have a label, from labels (n,) or (n, K)."""
    missing = np.isnan(labels)
    return ~(missing if labels.ndim == 1 else missing.any(axis=1))


def _concat_labels(parts: list[np.ndarray]) -> np.ndarray:
    """Concatenate labels; the single NaN of a corpus row is repeated to the width of the task's labels."""
    widest = max(parts, key=np.ndim)
    shaped = [
        part if part.ndim == widest.ndim else np.repeat(part[:, None], widest.shape[1], axis=1)
        for part in parts
    ]
    return np.concatenate(shaped)


def answered(answers: pa.StructArray) -> np.ndarray:
    """(n,) float64: 1 for rows with an answer, 0 for rows without one, NaN for unlabelled rows."""
    counts = pc.list_value_length(pc.struct_field(answers, "text"))
    return np.minimum(counts.cast(pa.float64()).to_numpy(zero_copy_only=False), 1.0)
