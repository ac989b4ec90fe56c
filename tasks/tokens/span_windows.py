"""Rows of `span` tasks as models read them: contexts cut into windows, answers as token positions.

A context that does not fit is cut into windows that overlap by `stride` tokens, at spaces if possible. A
window is an ordinary row whose texts are the question and a part of the context, so samplers, stores and
teachers do not need to know about windows. Character offsets count Unicode code points, as Python does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.common.errors import UserError
from tasks.data.rows import Rows, Windows
from tasks.tokens.ragged import RaggedArray, offsets_of
from tasks.tokens.tokeniser import Tokeniser

MAX_QUESTION = 64  # maximum tokens of a question, as in BERT
_UNKNOWN = np.array([-2, -2])
_NONE = np.array([-1, -1])


@dataclass(frozen=True, eq=False)
class SpanTokens:
    """Tokenised windows.

    Attributes:
        texts: token ids of the questions and of the contexts, w rows each.
        labels: (w, 2) float64, positions of the answer's first and last token in the joined sequence; 0, the
            first token, means no answer in this window; NaN = unlabelled.
        starts, ends: the first character of each context token in the window's text, and the one after its
            last.
    """

    texts: tuple[RaggedArray, RaggedArray]
    labels: np.ndarray
    starts: RaggedArray
    ends: RaggedArray


def cut_windows(rows: Rows, tokeniser: Tokeniser, max_length: int, stride: int) -> Rows:
    """Cut examples into windows, in order; uids are "<uid>@<first character>".

    An answer belongs to the windows that contain all of it. If no window does, the windows of the example
    count as unlabelled (`Windows.lost`).

    Args:
        rows: whole examples (question, context).
        max_length: maximum tokens of a window, including the question and special tokens.
        stride: number of tokens that neighbouring windows share; at most a third of a window.

    Raises:
        UserError: `max_length` leaves no room for a context.
    """
    assert rows.answers is not None, "only rows of span tasks are cut"
    layout = tokeniser.layout(2)
    max_question = min(MAX_QUESTION, (max_length - layout.n_specials) // 2)
    if max_question < 1:
        raise UserError(
            f"max_length {max_length} leaves no room for question and context", expected="16 or more"
        )
    questions = np.minimum(tokeniser.token_ids(rows.texts[0]).lengths, max_question)
    rooms = max_length - layout.n_specials - questions
    contexts = rows.texts[1].dictionary_encode()
    texts, context_of = contexts.dictionary.to_pylist(), contexts.indices.to_numpy()
    _, starts, ends = tokeniser.token_ids_with_offsets(contexts.dictionary)
    sizes = starts.lengths[context_of]
    cuts: list[tuple[int, int, int]] = []  # row, first character, the one after the last
    for row, (context, size, room) in enumerate(
        zip(context_of.tolist(), sizes.tolist(), rooms.tolist(), strict=True)
    ):
        of_row = [(0, len(texts[context]))]
        if size > room:
            of_row = _cuts(starts.row(context), ends.row(context), room, stride, len(texts[context]))
        cuts += [(row, *cut) for cut in of_row]
    row_of, begin, stop = np.array(cuts, np.int64).reshape(-1, 3).T.copy()
    answers, lost = _locate_answers(rows, row_of, begin, stop)
    windows = Windows(rows, row_of, begin, answers, int(max_question), max_length, lost)
    where = pa.array(row_of)
    parts = [texts[context_of[r]][b:s] for r, b, s in cuts]
    uids = [f"{uid}@{b}" for uid, (_, b, _) in zip(rows.uids.take(where).to_pylist(), cuts, strict=True)]
    labels = np.select([answers[:, 0] >= 0, answers[:, 0] == -1], [1.0, 0.0], np.nan)
    return Rows(
        rows.task,
        rows.split,
        pa.array(uids, pa.string()),
        (rows.texts[0].take(where), pa.array(parts, pa.string())),
        labels,
        windows=windows,
    )


def encode_windows(rows: Rows, tokeniser: Tokeniser) -> SpanTokens:
    """Tokenise windows, and map their answers to token positions."""
    assert rows.windows is not None, "rows of span tasks are cut into windows before they are encoded"
    windows, layout = rows.windows, tokeniser.layout(2)
    question_ids = tokeniser.token_ids(rows.texts[0])
    question_sizes = np.minimum(question_ids.lengths, windows.question)
    questions = _first(question_ids, question_sizes)
    coded = rows.texts[1].dictionary_encode()
    tokenised = [p.take(coded.indices.to_numpy()) for p in tokeniser.token_ids_with_offsets(coded.dictionary)]
    # A window that is tokenised alone may have more tokens than it had inside its context.
    rooms = windows.max_length - layout.n_specials - question_sizes
    short = tokenised[0].lengths > rooms
    contexts, starts, ends = (_first(part, np.minimum(part.lengths, rooms)) for part in tokenised)
    labels = np.zeros((len(rows), 2))
    labels[windows.answers[:, 0] == _UNKNOWN[0]] = np.nan
    before = len(layout.specials[0]) + question_sizes + len(layout.specials[1])
    for window in np.flatnonzero(windows.answers[:, 0] >= 0).tolist():
        first, end = windows.answers[window]
        tokens = np.array(
            [
                np.searchsorted(ends.row(window), first, side="right"),
                np.searchsorted(starts.row(window), end, side="left") - 1,
            ]
        )
        # The tokeniser may drop all characters of an answer, or its end may have been truncated.
        unread = short[window] and end > ends.row(window)[-1]
        readable = tokens[0] <= tokens[1] and not unread
        labels[window] = tokens + before[window] if readable else np.nan
    return SpanTokens((questions, contexts), labels, starts, ends)


def _first(rows: RaggedArray, counts: np.ndarray) -> RaggedArray:
    """The first `counts` values of each row."""
    if bool((counts == rows.lengths).all()):
        return rows
    offsets = offsets_of(counts)
    source = np.arange(offsets[-1]) + np.repeat(rows.offsets[:-1] - offsets[:-1], counts)
    return RaggedArray(rows.values[source], offsets)


def _cuts(starts: np.ndarray, ends: np.ndarray, room: int, stride: int, length: int) -> list[tuple[int, int]]:
    """The first character and the one after the last of each window of a context of over `room` tokens."""
    shared = min(stride, room // 3)
    search = room // 4
    size = len(starts)
    cuts, token = [], 0
    while True:
        stop = size if token + room >= size else _at_space(starts, ends, token + room, search)
        cuts.append((int(starts[token]) if token else 0, length if stop == size else int(ends[stop - 1])))
        if stop == size:
            return cuts
        token = max(token + 1, _at_space(starts, ends, stop - shared, search))


def _at_space(starts: np.ndarray, ends: np.ndarray, token: int, search: int) -> int:
    """The nearest token at or before `token` that follows a space; else one that starts a character."""
    for near in range(token, max(0, token - search), -1):
        if starts[near] > ends[near - 1]:
            return near
    return next((n for n in range(token, max(0, token - search), -1) if starts[n] >= ends[n - 1]), token)


def _locate_answers(
    rows: Rows, row: np.ndarray, begin: np.ndarray, stop: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(w, 2) character range of the first answer in each window, and the examples whose answer is in none."""
    assert rows.answers is not None
    answers = rows.answers.to_pylist()
    answer_spans = (
        np.stack([_first_answer(answer) for answer in answers]) if answers else np.zeros((0, 2), np.int64)
    )
    spans = answer_spans[row]
    inside = (spans[:, 0] >= begin) & (spans[:, 1] <= stop)
    placed = np.where(spans[:, :1] < 0, spans, np.where(inside[:, None], spans - begin[:, None], _NONE))
    held = np.zeros(len(rows), bool)
    held[row[inside]] = True
    lost = np.flatnonzero(~held & (answer_spans[:, 0] >= 0))
    placed[np.isin(row, lost)] = _UNKNOWN
    return placed, lost


def _first_answer(answer: dict | None) -> np.ndarray:
    if answer is None:
        return _UNKNOWN
    if not answer["text"]:
        return _NONE
    start = answer["answer_start"][0]
    return np.array([start, start + len(answer["text"][0])])
