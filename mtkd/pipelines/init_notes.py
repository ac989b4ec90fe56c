"""The notes of `mtkd init` about the data: what else could have been guessed, and what may be a mistake."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mtkd.pipelines.init_data import Part
from mtkd.pipelines.init_student import DEFAULT_RECIPE
from tasks.checks.label_balance import Balance
from tasks.checks.label_quality import MIN_CLASS_ROWS, label_problems, labels_alike
from tasks.checks.overlap import MAX_TRAINED_SHARE, trained_message
from tasks.checks.row_hashes import hash_rows
from tasks.common.errors import counted, shorten
from tasks.common.records import as_toml
from tasks.data.raw_table import RawTable
from tasks.data.soft_labels import can_have_soft_labels, read_soft_labels
from tasks.guess import Guess
from tasks.guess_labels import (
    FEW_WRONG,
    MINUS_ONE,
    as_numbers,
    guessed_texts,
    is_minus_one,
    is_text_column,
    row_labels,
)
from tasks.task import Task

_SAMPLE = 100  # rows from which the content of a column is guessed
_NO_VALUE = ("n/a", "na", "n.a.", "null", "none", "nan", "?", "-", "--")  # in lower case
_FEW_VALIDATION_ROWS = 100


def guess_notes(task: Task, guess: Guess, kind: str | None) -> list[str]:
    """What else could have been guessed; `kind`: the task type that the user gave, or None."""
    notes = []
    if guess.others:
        notes.append(f"{', '.join(map(repr, guess.others))} also looks like text")
    if guess.other_labels:
        others = ", ".join(map(repr, guess.other_labels))
        notes.append(f"the label could also be {others}; to choose it, use `label='COLUMN'`")
    if task.kind == "classify" and kind is None and all(name.isdigit() for name in guess.labels):
        notes.append(
            f"the numbers in {guess.label!r} are treated as classes; if they are scores, use `kind='regress'`"
        )
    return notes + labels_alike(task)


def probability_columns(task: Task, raw: RawTable) -> list[str]:
    """The columns that seem to hold a probability for each label, as the `soft_labels` of a task do."""
    if not task.labels or not can_have_soft_labels(task):
        return []
    first = replace(raw, table=raw.table.slice(0, _SAMPLE))
    found = []
    for name in first.table.column_names:
        values = first.table[name].drop_null()
        is_json = is_text_column(values.type) and str(values[:1].to_pylist())[2:3] in ("[", "{")
        if (
            name not in (*task.columns, task.label)
            and len(values)
            and (is_json or pa.types.is_nested(values.type))
        ):
            read = read_soft_labels(replace(task, soft_labels=name), first)
            found += [name] if read.kind == "probabilities" and read.valid.any() else []
    return found


def probability_notes(task: Task, raw: RawTable) -> list[str]:
    """A note for each column of probabilities, with what it can be used for."""
    return [
        f"the column {name!r} seems to hold the probabilities of the labels: with soft_labels = "
        f"{as_toml(name)} in the task file, a student can learn from them "
        "(docs/teachers.md#no-model-at-all-soft-labels-in-the-data)"
        for name in probability_columns(task, raw)
    ]


def number_notes(guess: Guess, train: Part) -> list[str]:
    """A note for each label that is a number (at most 3), if only a few rows have such labels."""
    if guess.kind != "classify":
        return []
    texts = guessed_texts(train.raw.table[guess.label]).to_pylist()
    counts = Counter(texts)
    numbers = [label for label in guess.labels if counts[label] and as_numbers([label])]
    rows = sum(counts[number] for number in numbers)
    if rows > FEW_WRONG * sum(counts[label] for label in guess.labels):
        return []
    first_rows = {number: train.raw.location(texts.index(number)) for number in numbers[:3]}
    return [
        f"the label {number!r} ({location}) is a number, unlike most labels: is it a mistake?"
        for number, location in first_rows.items()
    ]


def unlabelled_note(task: Task, labels: pa.ChunkedArray, rows: int) -> str:
    """A note on training rows without a label, which become unlabelled rows.

    Args:
        labels: the label column of all training rows.
        rows: how many of them have no label.
    """
    note = f"{counted(rows, 'training row')} without a label: the student uses their text"
    if task.kind == "multilabel":
        return note + "; write [] for a row to which no label applies"
    if task.kind != "classify" or not (count := sum(map(is_minus_one, guessed_texts(labels).to_pylist()))):
        return note
    are = "is" if count == 1 else "are"
    return f"{note}; {count:,} of them {are} labelled -1: {MINUS_ONE}"


def few_rows_notes(task: Task, recipe: str, rows: int) -> list[str]:
    """The warning that training the student of a recipe on this many rows would give."""
    if recipe == DEFAULT_RECIPE:
        return []  # importing torch takes seconds
    from mtkd.jobs.distillation.unlabelled_rows import few_rows_for_bilstm
    from mtkd.recipes import load_settings

    return few_rows_for_bilstm(load_settings(recipe, "distill", {}, task.name), rows)


def few_validation_rows_notes(rows: int) -> list[str]:
    """A warning about scores on a few validation rows."""
    if rows >= _FEW_VALIDATION_ROWS:
        return []
    width = 100 * 1.96 * math.sqrt(0.8 * 0.2 / rows)
    return [
        f"with {counted(rows, 'validation row')}, a score of 80% is known only to within {width:.0f} "
        "points, and scores look too good, because the best epoch is chosen on these rows: label more"
    ]


def trained_notes(task: Task, train: pa.Table, validation: pa.Table) -> list[str]:
    """The warning that training will give if many validation rows are also training rows."""
    columns = ([table[name] for name in task.columns] for table in (train, validation))
    trained, checked = (hash_rows(texts) for texts in columns)
    shared = np.isin(checked, trained)
    if not len(shared) or shared.mean() <= MAX_TRAINED_SHARE:
        return []
    return [trained_message("the validation split", int(shared.sum()), len(shared))]


def label_notes(task: Task, guess: Guess, splits: Mapping[str, Part]) -> list[str]:
    """Notes on labels that may be mistakes, have few training rows, or have no validation rows.

    Args:
        splits: split -> its labelled rows; "train" and "validation" are among them.
    """
    train = splits["train"]
    notes = _unused_labels_note(guess, splits)
    if task.type.predicts_spans:
        return notes + _answer_notes(task, splits)
    if task.kind != "classify":
        return notes
    counts = Counter(guessed_texts(train.raw.table[guess.label]).to_pylist())
    measured = set(guessed_texts(splits["validation"].raw.table[guess.label]).to_pylist())
    notes += [
        f"the label {unseen!r} is in validation rows, but in no training row: is it a typo?"
        for unseen in [text for text in guess.labels if text in measured and text not in counts][:3]
    ]
    notes += [
        f"the label {text!r} ({counted(counts[text], 'training row')}) may stand for a missing value: leave "
        "such cells empty if it does"
        for text in guess.labels
        if text.strip().casefold() in _NO_VALUE
    ]
    rare = [f"{text!r} ({counts[text]})" for text in guess.labels if 0 < counts[text] < MIN_CLASS_ROWS]
    if rare:
        fewer = f"fewer than {MIN_CLASS_ROWS} training rows"
        verb = "has" if len(rare) == 1 else "have"
        notes.append(f"{len(rare)} of {len(guess.labels)} labels {verb} {fewer}: {shorten(rare)}")
    if unmeasured := [repr(text) for text in guess.labels if counts[text] and text not in measured]:
        verb, them = ("is", "it") if len(unmeasured) == 1 else ("are", "them")
        notes.append(
            f"{len(unmeasured)} of {len(guess.labels)} labels {verb} in no validation row, so the scores do "
            f"not show whether a model predicts {them}: {shorten(unmeasured)}"
        )
    return notes


def _answer_notes(task: Task, splits: Mapping[str, Part]) -> list[str]:
    """The warnings of `mtkd data check` about the answers of a `span` task."""
    notes = []
    for split in ("train", "validation"):
        balance = Balance(task, split)
        balance.add(task.type.read_labels(task, split, splits[split].raw))
        problems = label_problems(task, split, splits[split].raw.path, balance)
        notes += [f"{split} rows: {problem.message}" for problem in problems]
    return notes


def _unused_labels_note(guess: Guess, splits: Mapping[str, Part]) -> list[str]:
    """A note on labels of the task that no training row and no validation row has."""
    columns = (splits[split].raw.table[guess.label] for split in ("train", "validation"))
    used = {label for column in columns for row in row_labels(column, guess.kind) for label in row}
    unused = [repr(label) for label in guess.labels if label not in used]
    if not unused:
        return []
    verb, them = ("has", "it") if len(unused) == 1 else ("have", "them")
    return [
        f"{len(unused)} of {len(guess.labels)} labels {verb} no labelled row, so the scores do not show "
        f"whether a model predicts {them}: {shorten(unused)}"
    ]
