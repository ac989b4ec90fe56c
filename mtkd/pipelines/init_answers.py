"""Answers as plain text in a table for question answering: their positions in the contexts are found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from mtkd.pipelines.init_data import Part
from tasks.common.errors import counted
from tasks.data.rows import ANSWERS
from tasks.guess_labels import is_text_column

_QUESTIONS = ("question", "query")
_CONTEXTS = ("context", "passage", "paragraph", "text")
_ANSWERS = ("answer", "answers", "answer_text")
_START = "answer_start"
_COLUMN = "answers"  # of the result, unless the user named the column
_MIN_FOUND = 0.9  # of the answers are in their contexts, or the table is not for question answering


def with_positions(
    part: Part, columns: Sequence[str], label: str | None, kind: str | None
) -> tuple[Part, list[str]]:
    """The rows, with `ANSWERS` in place of plain answers; rows of other tables are not changed.

    An empty answer means that there is none. A row whose answer is not in its context is left out. If an
    answer occurs several times, the column `answer_start` decides, or else the first one is taken.

    Args:
        columns, label, kind: as the user gave them to `init_pipeline`; without `kind`, nine of ten answers
            must be in their contexts.

    Returns:
        The rows, and notes on what was done.
    """
    table = part.raw.table
    names = {name.lower(): name for name in table.column_names}

    def found(usual: Sequence[str]) -> str:
        return next((names[name] for name in usual if name in names), "")

    question, context = columns if len(columns) == 2 else (found(_QUESTIONS), found(_CONTEXTS))
    answer = label or found(_ANSWERS)
    needed = (question, context, answer)
    is_text = all(name in table.column_names and is_text_column(table[name].type) for name in needed)
    if kind not in (None, "span") or not is_text:
        return part, []
    texts = [text or "" for text in table[answer].to_pylist()]
    contexts = [text or "" for text in table[context].to_pylist()]
    given = table[_START].to_pylist() if _START in table.column_names else [None] * len(texts)
    starts = [_position(*row) for row in zip(texts, contexts, given, strict=True)]
    absent, empty = starts.count(-1), texts.count("")
    if kind is None and absent > (1 - _MIN_FOUND) * (len(texts) - empty):
        return part, []
    values = [
        {"text": [text] if text else [], "answer_start": [start] if text else []}
        for text, start in zip(texts, starts, strict=True)
    ]
    table = table.drop_columns([answer]).append_column(label or _COLUMN, pa.array(values, ANSWERS))
    table = table.filter(pa.array([start != -1 for start in starts]))
    notes = [f"the positions of the answers in the column {answer!r} were found in {context!r}"]
    notes += (
        [f"{counted(absent, 'row')} left out, because the answer is not in the context"] if absent else []
    )
    notes += [f"{counted(empty, 'empty answer')}: these questions count as unanswerable"] if empty else []
    return replace(part, raw=replace(part.raw, table=table, lines=None, rows=None), path=None), notes


def _position(text: str, context: str, given: object) -> int:
    """The character at which an answer begins in its context, as whole words if possible; -1 = not there."""
    if isinstance(given, int | str) and str(given).isdigit() and context.startswith(text, int(given)):
        return int(given)
    words = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", context)
    return words.start() if words else context.find(text)
