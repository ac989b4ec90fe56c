"""The rows of one split of one task, stored by column."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.common.mapped import MappedTexts, mapped, release_pages

MAPPED_ROWS = 200_000  # more rows than these are kept in temporary files
STEP = 65_536  # rows processed at once
ANSWERS = pa.struct([("text", pa.list_(pa.string())), ("answer_start", pa.list_(pa.int32()))])


@dataclass(frozen=True, eq=False)
class Windows:
    """Where w windows of `span` rows were cut from (`tasks.tokens.span_windows.cut_windows`).

    Attributes:
        whole_rows: the rows, before they were cut.
        row: (w,) int64, the row of each window.
        begin: (w,) int64, the character offset of the window in the context of the row.
        answers: (w, 2) int64, the answer's first character in the window and the one after its last; -1 if
            the window has no answer, -2 if that is unknown.
        question: maximum number of question tokens.
        max_length: maximum number of tokens of a window.
        lost: numbers of the rows whose answer is in no window.
    """

    whole_rows: Rows
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
        soft: (n, C) float64, the rows' soft labels as logits (`tasks.data.soft_labels`), or None.
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
        assert self.windows is None, "windows refer to all rows"
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

    def parts(self) -> Iterator[Rows]:
        """The rows in parts of up to `STEP`, without `windows`, for loops that read each row once.

        Those of memory-mapped columns leave the memory again when the next part is read.
        """
        plain = replace(self, windows=None)
        for start in range(0, len(self), STEP):
            yield plain.slice(start, min(start + STEP, len(self)))
            release_pages()

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


def row_uids(task: str, split: str, start: int, count: int) -> pa.Array:
    """(count,) the names "task/split/number" of rows, numbered from `start`."""
    numbers = pa.array(np.arange(start, start + count)).cast(pa.string())
    return pc.binary_join_element_wise(pa.scalar(f"{task}/{split}"), numbers, "/")


def row_keys(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """One string per row of some columns; two are equal if and only if the rows agree in every column."""
    parts = []
    for column in columns:
        values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        values = values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
        text = values.cast(pa.large_string()).fill_null("")
        parts += [pc.binary_length(text).cast(pa.large_string()), text]
    return pc.binary_join_element_wise(*parts, pa.scalar(":", pa.large_string()))


def concat(parts: Iterable[Rows]) -> Rows:
    """Concatenate rows of one task, with the split name of the first part.

    Groups, answers and soft labels are kept only if all parts have them. Concatenate `span` rows before
    cutting windows. Uids, texts and labels of more than `MAPPED_ROWS` rows are memory-mapped.
    """
    rest = iter(parts)
    some: list[Rows] = []
    for part in rest:
        some.append(part)
        if len(some) > 1 and sum(map(len, some)) > MAPPED_ROWS:
            return _concat_mapped(itertools.chain(some, rest))
    if len(some) == 1:
        return some[0]
    return _joined(
        some,
        pa.concat_arrays([part.uids for part in some]),
        [pa.concat_arrays(list(columns)) for columns in zip(*(part.texts for part in some), strict=True)],
        _concat_labels([part.labels for part in some]),
    )


def _concat_mapped(parts: Iterator[Rows]) -> Rows:
    """Concatenate rows in temporary files; of the parts, only what is not text is kept in memory."""
    without_texts: list[Rows] = []
    columns: list[MappedTexts] = []
    none = pa.array([], pa.string())

    def labels() -> Iterator[np.ndarray]:
        for part in parts:
            columns.extend(MappedTexts() for _ in range(0 if columns else 1 + len(part.texts)))
            for column, values in zip(columns, (part.uids, *part.texts), strict=True):
                column.add(values)
            shape = without_texts[0].labels.shape if without_texts else (0, *part.labels.shape[1:])
            without_texts.append(replace(part, uids=none, texts=(), labels=np.zeros(shape)))
            yield _widened(part.labels, without_texts[0].labels)
            release_pages()

    all_labels = mapped(labels(), np.float64)
    uids, *texts = (column.finish(narrow=True) for column in columns)
    return _joined(without_texts, uids, texts, all_labels)


def _joined(parts: list[Rows], uids: pa.Array, texts: Sequence[pa.Array], labels: np.ndarray) -> Rows:
    """The rows of some parts, given the columns that all rows have."""
    groups = [part.groups for part in parts if part.groups is not None]
    answers = [part.answers for part in parts if part.answers is not None]
    soft = [part.soft for part in parts if part.soft is not None]
    return Rows(
        parts[0].task,
        parts[0].split,
        uids,
        tuple(texts),
        labels,
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
    return np.concatenate([_widened(part, widest) for part in parts])


def _widened(labels: np.ndarray, like: np.ndarray) -> np.ndarray:
    return labels if labels.ndim == like.ndim else np.repeat(labels[:, None], like.shape[1], axis=1)


def answered(answers: pa.StructArray) -> np.ndarray:
    """(n,) float64: 1 for rows with an answer, 0 for rows without one, NaN for unlabelled rows."""
    counts = pc.list_value_length(pc.struct_field(answers, "text"))
    return np.minimum(counts.cast(pa.float64()).to_numpy(zero_copy_only=False), 1.0)
