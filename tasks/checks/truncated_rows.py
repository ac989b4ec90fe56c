"""Count the rows of which a model reads only the first tokens, and warn about them once."""

from __future__ import annotations

from tasks.checks.span_lengths import truncated_questions
from tasks.common.errors import counted, warn_caller
from tasks.tokens.encoding import Encoded
from tasks.tokens.reader import Reader


class TruncatedRows:
    """The number of rows that were truncated to a model's `max_length`."""

    def __init__(self) -> None:
        self._count, self._most = 0, ""

    def add(self, reader: Reader, encoded: Encoded) -> None:
        """Count the truncated ones of some rows; of rows that are read in windows, only questions can be."""
        if encoded.windows is not None:
            self._count += truncated_questions(encoded, reader.tokeniser)
            self._most = f"{encoded.windows.question} tokens in the question"
        else:
            self._count += int(reader.is_truncated(encoded.texts).sum())
            per = " per text" if reader.input_format == "separate" else ""
            self._most = f"{reader.max_length:,} tokens{per}"

    def warn(self, file: str | None = None) -> None:
        """Warn if any row was truncated; `file`: the file that the rows are from, for the message."""
        if self._count:
            rows = counted(self._count, "row") + (f" of {file}" if file else "")
            warn_caller(f"{rows} with more than {self._most}: the model does not read the rest")
