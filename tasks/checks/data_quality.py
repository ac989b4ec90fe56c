"""Warnings about a whole split: class imbalance, leakage, truncation, and unreadable text."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.checks.split_statistics import SAMPLE, SplitStatistics
from tasks.common.errors import brief, counted, shorten
from tasks.common.hub_loading import embedded_encoder
from tasks.data.raw_table import RawTable
from tasks.data.row_checks import Problem
from tasks.glue import TASKS
from tasks.task import Task
from tasks.task_types.labels import ParsedLabels, nearly_equal_labels

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Data beyond these limits gives a warning.
MAX_CLASS_SHARE = 0.9  # share of the rows in one class
MIN_CLASS_ROWS = 5  # rows per class in the training split, and in validation splits
MAX_FOREIGN_SHARE = 0.2  # share of letters outside the Latin script
MAX_UNKNOWN_SHARE = 0.05  # share of tokens outside the vocabulary
MAX_TRUNCATED_SHARE = 0.05  # share of training rows that are truncated

_CHARACTERS = 24  # per token; longer texts are truncated anyway, so the rest is not tokenised


def imbalance(task: Task, split: str, path: str, balance: Mapping[str, int]) -> list[Problem]:
    """Warnings for a class that has nearly all rows, and for classes with too few rows to learn from.

    There are none for rows with soft labels, since each of these describes all classes. For `span` tasks,
    there is a warning for questions without an answer, unless the task expects them.

    Args:
        balance: label -> rows.
    """
    without = balance.get("no answer", 0) if task.type.predicts_spans and not task.unanswerable else 0
    if without and split not in task.test:
        message = (
            f"{counted(without, 'row')} without an answer, but the task is not `unanswerable`, so every "
            "prediction for them is wrong"
        )
        return [Problem(path, task.label, message, "warning")]
    if not task.type.one_class or split in task.test or task.has_soft_labels(split):
        return []
    rows = {name: balance.get(name, 0) for name in task.labels}
    total = sum(rows.values())
    problems = []
    largest = max(rows, key=lambda name: rows[name])
    if total and rows[largest] > MAX_CLASS_SHARE * total:
        share = rows[largest] / total
        message = (
            f"{share:.1%} of the rows have the label {largest!r}; macro_f1 is more informative than accuracy"
        )
        problems.append(Problem(path, task.label, message, "warning"))
    rare = _rare_classes(rows)
    if rare and split == task.train:
        message = f"{len(rare)} of {len(rows)} labels have fewer than {MIN_CLASS_ROWS} rows: {shorten(rare)}"
        problems.append(Problem(path, task.label, message, "warning"))
    return problems


def unmeasured_classes(
    task: Task, split: str, path: str, balance: Mapping[str, int], trained: Mapping[str, int]
) -> list[Problem]:
    """A warning for classes of the training split that have too few rows in a validation split.

    Args:
        balance: label -> rows of the validation split; there is no warning for other splits.
        trained: label -> rows of the training split.
    """
    if not task.type.one_class or split not in task.validation:
        return []
    rows = {name: balance.get(name, 0) for name in task.labels if trained.get(name)}
    rare = _rare_classes(rows)
    if not rare:
        return []
    have, them = ("has", "it") if len(rare) == 1 else ("have", "them")
    message = (
        f"{len(rare)} of {len(task.labels)} labels {have} fewer than {MIN_CLASS_ROWS} rows, so the scores on "
        f"this split carry no information about {them}: {shorten(rare)}"
    )
    return [Problem(path, task.label, message, "warning")]


def _rare_classes(rows: Mapping[str, int]) -> list[str]:
    """The classes with too few rows, each with its number of rows, for messages."""
    shown = {name: name if name == name.strip() else repr(name) for name in rows}
    return [f"{shown[name]} ({count})" for name, count in rows.items() if count < MIN_CLASS_ROWS]


def labels_alike(task: Task) -> list[str]:
    """A warning for labels that differ only in case or surrounding spaces, which may be a mistake."""
    pairs = nearly_equal_labels(task.labels)
    if not pairs:
        return []
    shown = shorten(f"{one!r} and {other!r}" for one, other in pairs)
    return [f"labels that differ only in case or surrounding spaces are different classes: {shown}"]


class GroupSizes:
    """The number of candidates in each group of a `rank` task, and of right ones among them."""

    def __init__(self, task: Task):
        self._task = task
        self._numbers: dict[Any, int] = {}  # group -> its row in `_sizes`
        self._sizes = np.zeros((0, 3), np.int64)  # rows, rows with a right candidate, rows without a label

    def add(self, raw: RawTable, labels: ParsedLabels | None) -> None:
        """Add some rows of the split; those without a group do not count."""
        if self._task.group is None or labels is None:
            return
        coded = raw.table[self._task.group].combine_chunks().dictionary_encode()
        names = coded.dictionary.to_pylist()
        numbers = np.array([self._numbers.setdefault(n, len(self._numbers)) for n in names], np.int64)
        named = coded.is_valid().to_numpy(zero_copy_only=False)
        group = numbers[coded.indices.drop_null().to_numpy()]
        values = labels.values[named]
        sizes = np.zeros((len(self._numbers), 3), np.int64)
        sizes[: len(self._sizes)] = self._sizes
        everything = np.ones(len(values), bool)
        for column, rows in enumerate((everything, values == self._task.positive, np.isnan(values))):
            sizes[:, column] += np.bincount(group[rows], minlength=len(sizes))
        self._sizes = sizes

    def problems(self, path: str) -> list[Problem]:
        """Warnings for groups with one candidate, and for groups without a right one.

        There are none for built-in tasks, whose groups users cannot change.
        """
        if TASKS.get(self._task.name) == self._task:
            return []
        rows, right, unlabelled = self._sizes.T
        names = list(self._numbers)

        def of(chosen: np.ndarray) -> str:
            first = brief(names[int(chosen.argmax())])
            return f"{int(chosen.sum()):,} of {counted(len(names), 'group')} (the first is {first})"

        single, none_right = rows == 1, (right == 0) & (unlabelled == 0)
        messages = []
        if single.any():
            messages.append(f"{of(single)} have only one candidate, so there is nothing to rank")
        if none_right.any():
            label = self._task.labels[self._task.positive]
            messages.append(
                f"{of(none_right)} have no candidate with the label {label!r}: nothing is learned from "
                "them, and every ranking of them is wrong"
            )
        return [Problem(path, self._task.group, message, "warning") for message in messages]


def leakage(statistics: SplitStatistics) -> list[Problem]:
    """A warning for rows that are also in the training split, with an example."""
    if not statistics.seen:
        return []
    are = "is" if statistics.seen == 1 else "are"
    share = f"{statistics.seen / statistics.rows:.1%}"
    message = (
        f"{counted(statistics.seen, 'row')} ({share}) {are} also in the training split, which inflates "
        f"scores on this split; the first is {statistics.first_seen}"
    )
    return [Problem(statistics.path, None, message, "warning")]


def token_problems(task: Task, split: SplitStatistics, max_length: int) -> list[Problem]:
    """Warnings for rows that will be truncated, and for text outside the default vocabulary.

    The rows of the sample are tokenised with the default tokeniser. Rows of `span` tasks are split into
    windows and never truncated.

    Args:
        max_length: tokens kept per row, special tokens included.
    """
    columns, ids = _tokenised(split.sample, max_length)
    if not any(map(len, ids)):
        return []
    messages = []
    share = float(np.mean(_lengths(columns, ids) > max_length))
    if not task.type.predicts_spans and share:
        sampled = split.sample.num_rows
        of = "" if sampled == split.rows else f" ({sampled:,} were sampled)"
        messages.append(
            f"{share:.1%} of the rows{of} have more than {max_length:,} tokens of the default tokeniser, and "
            f"will be truncated if the max_length of a model is {max_length:,}; a larger max_length "
            "keeps more"
        )
    letters, latin = _count(columns, r"\p{L}"), _count(columns, r"\p{Latin}")
    foreign = (letters - latin) / max(1, letters)
    unknown = np.mean(np.concatenate(ids) == _default_tokenizer().token_to_id("[UNK]"))
    if foreign > MAX_FOREIGN_SHARE or unknown > MAX_UNKNOWN_SHARE:
        messages.append(
            f"{foreign:.0%} of the letters are not Latin and {unknown:.0%} of the tokens are unknown to the "
            "default vocabulary, which is English: choose an encoder that was trained on this language"
        )
    return [Problem(split.path, None, message, "warning") for message in messages]


def truncation_message(rows: str, share: float, most: str, setting: str = "max_length") -> str:
    """The warning that a share of some rows will be truncated.

    Args:
        rows: the rows, such as "the training rows".
        share: the share of them that is truncated.
        most: the length to which rows are truncated, such as "128 tokens".
        setting: the setting to change.
    """
    return (
        f"{share:.1%} of {rows} have more than {most}, and will be truncated; a larger {setting} keeps more"
    )


def token_lengths(task: Task, table: pa.Table, longest: int) -> np.ndarray:
    """The number of tokens of up to 1,000 random rows, by the default tokeniser, with special tokens.

    Args:
        longest: exact counts are only needed up to this number; larger counts may be too small, but stay
            above it.
    """
    chosen = np.random.default_rng(0).permutation(len(table))[:SAMPLE]
    schema = pa.schema([(name, pa.string()) for name in task.columns])
    return _lengths(*_tokenised(table.select(list(task.columns)).take(np.sort(chosen)).cast(schema), longest))


def _tokenised(sample: pa.Table, longest: int) -> tuple[list[pa.Array], list[np.ndarray]]:
    """The texts of each column, truncated to at least `longest` tokens, and the token ids of each text."""
    texts = [column.combine_chunks().fill_null("") for column in sample.columns]
    columns = [pc.utf8_slice_codeunits(column, 0, _CHARACTERS * longest) for column in texts]
    tokenizer = _default_tokenizer()
    return columns, [
        np.array(text.ids, dtype=np.int64)
        for column in columns
        for text in tokenizer.encode_batch_fast(column.to_pylist(), add_special_tokens=False)
    ]


def _lengths(columns: Sequence[pa.Array], ids: Sequence[np.ndarray]) -> np.ndarray:
    """The number of tokens of each row, with special tokens."""
    return np.array([len(text) for text in ids]).reshape(len(columns), -1).sum(axis=0) + len(columns) + 1


def _count(columns: Sequence[pa.Array], pattern: str) -> int:
    """How often a pattern occurs in all texts together."""
    return sum(pc.sum(pc.count_substring_regex(column, pattern)).as_py() for column in columns)


@functools.cache
def _default_tokenizer() -> Tokenizer:
    """The default teacher's tokeniser, without torch or transformers."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(embedded_encoder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
