"""Warnings about a whole split: class imbalance, leakage, truncation, and unreadable text."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.errors import shorten
from tasks.hub_loading import embedded_encoder
from tasks.split_statistics import SplitStatistics
from tasks.task import Task
from tasks.validation import Problem

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LARGEST_SHARE = 0.9  # share of the rows in one class
FEWEST_ROWS = 5  # training rows of a class
FOREIGN_SHARE = 0.2  # share of letters outside the Latin script
UNKNOWN_SHARE = 0.05  # share of tokens outside the vocabulary
_CHARACTERS = 24  # per token; text beyond this is cut off anyway, so it is not tokenized


def imbalance(task: Task, split: str, path: str, balance: Mapping[str, int]) -> list[Problem]:
    """Warnings for a class that has nearly all rows, and for classes with too few rows to learn from.

    Args:
        balance: label -> rows.
    """
    if not task.type.one_class or split in task.test:
        return []
    rows = {name: balance.get(name, 0) for name in task.labels}
    total = sum(rows.values())
    problems = []
    largest = max(rows, key=lambda name: rows[name])
    if total and rows[largest] > LARGEST_SHARE * total:
        share = rows[largest] / total
        message = (
            f"{share:.1%} of the rows have the label {largest!r}; macro_f1 is more informative than accuracy"
        )
        problems.append(Problem(path, task.label, message, "warning"))
    rare = [f"{name} ({count})" for name, count in rows.items() if count < FEWEST_ROWS]
    if rare and split == task.train:
        message = f"{len(rare)} of {len(rows)} labels have fewer than {FEWEST_ROWS} rows: {shorten(rare)}"
        problems.append(Problem(path, task.label, message, "warning"))
    return problems


def leakage(statistics: SplitStatistics) -> list[Problem]:
    """A warning for rows that are also in the training split, with an example."""
    if not statistics.seen:
        return []
    message = (
        f"{statistics.seen:,} rows ({statistics.seen / statistics.rows:.1%}) are also training rows, which "
        f"inflates scores on this split; the first is {statistics.first_seen}"
    )
    return [Problem(statistics.path, None, message, "warning")]


def token_problems(task: Task, split: SplitStatistics, max_length: int) -> list[Problem]:
    """Warnings for rows that will be truncated, and for text outside the default vocabulary.

    The rows of the sample are tokenized with the default tokenizer. Rows of `span` tasks are split into
    windows and never truncated.

    Args:
        max_length: tokens kept per row, special tokens included.
    """
    texts = [column.combine_chunks().fill_null("") for column in split.sample.columns]
    columns = [pc.utf8_slice_codeunits(column, 0, _CHARACTERS * max_length) for column in texts]
    tokenizer = _default_tokenizer()
    ids = [
        np.array(text.ids, dtype=np.int64)
        for column in columns
        for text in tokenizer.encode_batch_fast(column.to_pylist(), add_special_tokens=False)
    ]
    if not any(map(len, ids)):
        return []
    messages = []
    lengths = np.array([len(text) for text in ids]).reshape(len(columns), -1).sum(axis=0) + len(columns) + 1
    if not task.type.predicts_spans and (lengths > max_length).any():
        sampled = split.sample.num_rows
        of = "" if sampled == split.rows else f" ({sampled:,} were sampled)"
        messages.append(
            f"{np.mean(lengths > max_length):.1%} of the rows{of} have more than {max_length} tokens and "
            "will be cut to that length by the default tokenizer; a larger max_length keeps more"
        )
    letters, latin = _count(columns, r"\p{L}"), _count(columns, r"\p{Latin}")
    foreign = (letters - latin) / max(1, letters)
    unknown = np.mean(np.concatenate(ids) == tokenizer.token_to_id("[UNK]"))
    if foreign > FOREIGN_SHARE or unknown > UNKNOWN_SHARE:
        messages.append(
            f"{foreign:.0%} of the letters are not Latin and {unknown:.0%} of the tokens are unknown to the "
            "default vocabulary, which is English: choose an encoder that was trained on this language"
        )
    return [Problem(split.path, None, message, "warning") for message in messages]


def _count(columns: Sequence[pa.Array], pattern: str) -> int:
    """How often a pattern occurs in all texts together."""
    return sum(pc.sum(pc.count_substring_regex(column, pattern)).as_py() for column in columns)


@functools.cache
def _default_tokenizer() -> Tokenizer:
    """The default teacher's tokenizer, without torch or transformers."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(embedded_encoder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
