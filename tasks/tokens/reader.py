"""How a model reads rows: as one sequence or as separate texts, truncated or cut into windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tasks.common.errors import UserError
from tasks.data.rows import Rows
from tasks.tokens.ragged import RaggedArray
from tasks.tokens.span_windows import cut_windows
from tasks.tokens.token_layout import Layout
from tasks.tokens.tokeniser import Tokeniser

InputFormat = Literal["joined", "side-by-side", "separate"]


@dataclass(frozen=True)
class Reader:
    """How one model reads rows.

    Attributes:
        tokeniser: the model's tokeniser.
        input_format: "joined": [CLS] a [SEP] b [SEP], truncated longest text first as in transformers;
            "side-by-side": [CLS] a [SEP] [CLS] b [SEP], truncated likewise, for a model in which neither text
            attends to the other; "separate": each text on its own, without special tokens, an empty text as
            one unknown token.
        max_length: maximum number of tokens, special tokens included, of the sequence or of each separate
            text.
        stride: number of tokens that neighbouring windows of a long context share (`span` tasks).
        side_by_side: the names of tasks with two texts that are read "side-by-side" when `input_format` is
            "joined".

    Raises:
        UserError: `max_length` leaves no room for a token of each text.
    """

    tokeniser: Tokeniser
    input_format: InputFormat
    max_length: int
    stride: int = 128
    side_by_side: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        least = 1 if self.input_format == "separate" else self.layout(2).n_specials + 2
        if self.max_length < least:
            raise UserError(f"max_length {self.max_length} is too short", expected=f"{least} or more")

    def for_task(self, task: str) -> Reader:
        """How the rows of one task are read: a reader with one format for all rows."""
        if not self.side_by_side:
            return self
        input_format = "side-by-side" if task in self.side_by_side else self.input_format
        return replace(self, input_format=input_format, side_by_side=frozenset())

    def layout(self, n_texts: int) -> Layout:
        """The special tokens around the texts of a row, which form one sequence."""
        if n_texts == 2 and self.input_format == "side-by-side":
            return self.tokeniser.layout(1).beside()
        return self.tokeniser.layout(n_texts)

    def rows(self, rows: Rows) -> Rows:
        """Cut examples of `span` tasks into windows; return other rows unchanged.

        Raises:
            UserError: the rows belong to a span task, and the model does not read both texts together.
        """
        if rows.answers is None or rows.windows is not None:
            return rows
        if self.input_format != "joined":
            raise UserError(
                f"task {rows.task!r} has answers inside the context, but this model reads the question "
                "and the context separately",
                hint="use a Transformer for span tasks (`student.kind=transformer`) that is not a bi-encoder",
            )
        return cut_windows(rows, self.tokeniser, self.max_length, self.stride)

    def reads_like(self, other: Reader, n_texts: int = 2) -> bool:
        """True if both readers produce the same inputs from the same rows, which have 1 or 2 texts."""
        return self._format_key(n_texts) == other._format_key(n_texts)

    def _format_key(self, n_texts: int) -> tuple[object, ...]:
        """The values that determine the inputs; a single text has no second text beside it."""
        alone = n_texts == 1 and self.input_format == "side-by-side"
        input_format = "joined" if alone else self.input_format
        return self.tokeniser.digest, input_format, self.side_by_side, self.max_length

    def lengths(self, texts: tuple[RaggedArray, ...]) -> np.ndarray:
        """(n,) tokens per row after truncation, special tokens included; rows are grouped by this length."""
        return self.sequence_lengths(texts).sum(1)

    def sequence_lengths(self, texts: tuple[RaggedArray, ...]) -> np.ndarray:
        """(n, k) tokens of the sequences of each row: one, or one per text if texts are read separately."""
        lengths = self.kept(tuple(text.lengths for text in texts))
        if self.input_format == "separate":
            return np.stack(lengths, 1)
        return np.sum(lengths, axis=0)[:, None] + self.layout(len(texts)).n_specials

    def is_truncated(self, texts: tuple[RaggedArray, ...]) -> np.ndarray:
        """(n,) bool, True for rows that are truncated."""
        lengths = tuple(text.lengths for text in texts)
        longer = [length > kept for length, kept in zip(lengths, self.kept(lengths), strict=True)]
        return np.any(longer, axis=0)

    def kept(self, lengths: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """For each text, the (n,) number of tokens kept after truncation, given its (n,) length."""
        if self.input_format == "separate":
            return tuple(np.minimum(np.maximum(length, 1), self.max_length) for length in lengths)
        room = self.max_length - self.layout(len(lengths)).n_specials
        if len(lengths) == 1:
            return (np.minimum(lengths[0], room),)
        first, second = lengths
        fits = first + second <= room
        short = np.minimum(np.minimum(first, second), room // 2)
        ordered = first <= second
        return (
            np.where(fits, first, np.where(ordered, short, room - short)),
            np.where(fits, second, np.where(ordered, room - short, short)),
        )
