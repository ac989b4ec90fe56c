"""How a model reads rows: in one sequence or text by text, how much of them, and in which windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tasks.errors import UserError
from tasks.ragged import RaggedArray
from tasks.rows import Rows
from tasks.span_windows import cut_windows
from tasks.tokeniser import Tokeniser

InputFormat = Literal["joined", "separate"]


@dataclass(frozen=True)
class Reader:
    """How one model reads rows.

    Attributes:
        tokeniser: gives its pieces and the special tokens around them.
        input_format: `joined`, [CLS] a [SEP] b [SEP], cut longest text first as transformers does;
            `texts`, each text apart without special tokens, an empty one as one unknown token.
        max_length: tokens kept, special ones included: of the whole (`joined`) or of each text (`texts`).
        stride: tokens that neighbouring windows of a long context share (`span` tasks).

    Raises:
        UserError: max_length leaves no room for a token of each text.
    """

    tokeniser: Tokeniser
    input_format: InputFormat
    max_length: int
    stride: int = 128

    def __post_init__(self) -> None:
        least = self.tokeniser.layout(2).n_specials + 2 if self.input_format == "joined" else 1
        if self.max_length < least:
            raise UserError(f"max_length {self.max_length} is too short", expected=f"{least} or more")

    def rows(self, rows: Rows) -> Rows:
        """The rows as this model reads them: examples of `span` tasks in windows, all others as they are.

        Raises:
            UserError: examples of a span task, and texts are read apart.
        """
        if rows.answers is None or rows.windows is not None:
            return rows
        if self.input_format != "joined":
            raise UserError(
                f"task {rows.task!r} asks for a place in the context, and this model reads texts apart",
                hint="choose a Transformer for span tasks (`student.kind=transformer`)",
            )
        return cut_windows(rows, self.tokeniser, self.max_length, self.stride)

    def reads_like(self, other: Reader) -> bool:
        """True if both make the same inputs of the same rows."""
        return (self.tokeniser.digest, self.input_format, self.max_length) == (
            other.tokeniser.digest,
            other.input_format,
            other.max_length,
        )

    def lengths(self, texts: tuple[RaggedArray, ...]) -> np.ndarray:
        """(n,) tokens a row after truncation, special ones included (`texts`: of all its texts).

        What length buckets sort by.
        """
        kept = self.kept(tuple(text.lengths for text in texts))
        specials = self.tokeniser.layout(len(texts)).n_specials if self.input_format == "joined" else 0
        return np.sum(kept, axis=0) + specials

    def kept(self, lengths: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """(n,) tokens that are kept of each text, given its (n,) pieces; `texts`: at least one."""
        if self.input_format == "separate":
            return tuple(np.clip(length, 1, self.max_length) for length in lengths)
        room = self.max_length - self.tokeniser.layout(len(lengths)).n_specials
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
