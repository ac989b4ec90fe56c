"""Questions and answers of `span` tasks that are too long for a model."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.common.errors import counted
from tasks.task import Task
from tasks.tokens.encoding import Encoded
from tasks.tokens.tokeniser import Tokeniser


def span_length_warnings(task: Task, encoded: Encoded, tokeniser: Tokeniser) -> list[str]:
    """Warnings about answers that are too long to be predicted, and about truncated questions.

    Args:
        encoded: all windows of some rows.
        tokeniser: the one that they were encoded with.
    """
    assert encoded.windows is not None, "only rows of span tasks are cut into windows"
    warnings = []
    with np.errstate(invalid="ignore"):  # NaN: unlabelled
        is_long = encoded.labels[:, 1] - encoded.labels[:, 0] >= task.max_answer_tokens
    if n_long := len(np.unique(encoded.windows.row[is_long])):
        warnings.append(
            f"{counted(n_long, 'answer')} of {task.name} {_has(n_long)} more than {task.max_answer_tokens} "
            "tokens, so they are never predicted in full: raise `max_answer_tokens` of the task"
        )
    if n_cut := truncated_questions(encoded, tokeniser):
        warnings.append(
            f"{counted(n_cut, 'question')} of {task.name} {_has(n_cut)} more than {encoded.windows.question} "
            "tokens; the rest is cut off"
        )
    return warnings


def truncated_questions(encoded: Encoded, tokeniser: Tokeniser) -> int:
    """The number of rows whose question has more tokens than the model reads."""
    windows = encoded.windows
    assert windows is not None, "only rows of span tasks are cut into windows"
    rows = np.unique(windows.row[encoded.texts[0].lengths == windows.question])  # only these can be longer
    questions = windows.whole_rows.texts[0].take(pa.array(rows)).dictionary_encode()
    lengths = tokeniser.token_ids(questions.dictionary).lengths[questions.indices.to_numpy()]
    return int(pc.sum(pa.array(lengths > windows.question)).as_py() or 0)


def _has(number: int) -> str:
    return "has" if number == 1 else "have"
