"""Setting training rows aside for validation, for `mtkd init`."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtkd.pipelines.init_data import Part
from tasks.common.errors import UserError
from tasks.guess import Guess
from tasks.guess_labels import row_labels

_MAX_VALIDATION = 5000  # texts that are split off


def set_aside(table: pa.Table, guess: Guess, fraction: float) -> tuple[Part, Part]:
    """Split training rows into training and validation rows: those of the texts with the lowest digests.

    The last text of each label stays in the training rows, since a model learns only labels that it sees.

    Raises:
        UserError: there is one text, or each text is the only one of a label.
    """
    columns = guess.columns[-1:] if guess.kind == "span" else guess.columns
    texts = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    order = sorted(set(texts), key=lambda text: hashlib.sha256(repr(text).encode()).digest())
    if len(order) < 2:
        raise UserError("one text cannot be split into training and validation rows", expected="two or more")
    labels: dict[tuple[str, ...], set[str]] = defaultdict(set)
    if guess.labels:
        for text, some in zip(texts, row_labels(table[guess.label], guess.kind), strict=True):
            labels[text].update(some)
    remaining = Counter(label for some in labels.values() for label in some)
    chosen: set[tuple[str, ...]] = set()
    most = min(_MAX_VALIDATION, max(1, round(fraction * len(order))))
    for text in order:
        if len(chosen) < most and all(remaining[label] > 1 for label in labels[text]):
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
