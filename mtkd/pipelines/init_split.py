"""Set training rows aside for validation, for `mtkd init`."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtkd.pipelines.init_data import Part
from tasks.checks.label_quality import MIN_CLASS_ROWS
from tasks.common.errors import UserError
from tasks.guess import Guess
from tasks.guess_labels import row_labels

_MAX_VALIDATION_TEXTS = 5000


def split_validation_rows(table: pa.Table, guess: Guess, fraction: float) -> tuple[Part, Part]:
    """Split training rows into training rows and validation rows, in a reproducible way.

    The texts with the lowest digests are set aside, with all their rows: about the same part of each class,
    and at least one text of each label that has five or more, as far as `fraction` allows. Each label keeps
    at least one training text, since a model cannot learn a label without one.

    Args:
        fraction: the fraction of the different texts that is set aside.

    Returns:
        The training rows and the validation rows.

    Raises:
        UserError: there is only one text, or each text is the only one with one of its labels.
    """
    columns = guess.columns[-1:] if guess.kind == "span" else guess.columns
    texts = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    unique_texts = sorted(set(texts), key=lambda text: hashlib.sha256(repr(text).encode()).digest())
    if len(unique_texts) < 2:
        raise UserError(
            "one text cannot be split into training and validation rows", expected="two or more texts"
        )
    labels: dict[tuple[str, ...], set[str]] = defaultdict(set)
    if guess.labels:
        for text, labels_of_row in zip(texts, row_labels(table[guess.label], guess.kind), strict=True):
            labels[text].update(labels_of_row)
    # label -> the number of texts with it that are still training rows
    remaining = Counter(label for labels_of_text in labels.values() for label in labels_of_text)
    chosen: set[tuple[str, ...]] = set()
    first_texts: dict[str, tuple[str, ...]] = {}
    for text in unique_texts:
        for label in labels[text]:
            if remaining[label] >= MIN_CLASS_ROWS:
                first_texts.setdefault(label, text)
    max_texts = min(_MAX_VALIDATION_TEXTS, max(1, round(fraction * len(unique_texts))))
    by_label: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for text in unique_texts if guess.kind == "classify" else ():
        for label in labels[text]:
            by_label[label].append(text)
    share = max_texts / len(unique_texts)
    proportional = [
        text
        for label in sorted(by_label, key=lambda label: (len(by_label[label]), label))  # rare labels first
        for text in by_label[label][: round(share * len(by_label[label]))]
    ]
    for text in dict.fromkeys([*first_texts.values(), *proportional, *unique_texts]):
        if len(chosen) < max_texts and all(remaining[label] > 1 for label in labels[text]):
            chosen.add(text)
            remaining.subtract(labels[text])
    if not chosen:
        raise UserError(
            "no training row can be set aside for validation: each is the only one with its label",
            expected="labels that several rows have",
            hint="name a file of validation rows with `validation='FILE'`",
        )
    held_out = pa.array(np.array([text in chosen for text in texts]))
    return Part.of(table.filter(pc.invert(held_out))), Part.of(table.filter(held_out))
