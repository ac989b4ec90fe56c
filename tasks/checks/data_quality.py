"""Warnings about the texts of a split: leakage, truncation, and unreadable text."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.checks.split_statistics import SAMPLE, SplitStatistics
from tasks.common.errors import counted
from tasks.common.hub_loading import embedded_encoder
from tasks.data.row_checks import Problem
from tasks.task import Task
from tasks.tokens.ragged import RaggedArray
from tasks.tokens.span_windows import MAX_QUESTION

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tasks.tokens.tokeniser import Tokeniser

# Data beyond these limits gives a warning.
MAX_FOREIGN_SHARE = 0.2  # share of letters outside the Latin script
MAX_UNKNOWN_SHARE = 0.05  # share of tokens outside the vocabulary
MAX_TRUNCATED_SHARE = 0.05  # share of training rows that are truncated

_CHARACTERS = 24  # per token; longer texts are truncated anyway, so the rest is not tokenised


def leakage(statistics: SplitStatistics) -> list[Problem]:
    """A warning for rows that are also in the training split, with an example."""
    if not statistics.seen:
        return []
    are = "is" if statistics.seen == 1 else "are"
    share = f"{statistics.seen / statistics.rows:.1%}"
    message = (
        f"{counted(statistics.seen, 'row')} ({share}) {are} also in the training split, which inflates "
        f"scores on this split; the first is {statistics.first_seen}"
    )
    return [Problem(statistics.path, None, message, "warning")]


@dataclass(frozen=True)
class TokenSample:
    """The tokens of some rows.

    Attributes:
        columns: the texts of each column, truncated.
        ids: the token ids of the texts of each column, without special tokens.
        tokeniser: the teacher's; None = the default teacher's, whose vocabulary is English.
    """

    columns: tuple[pa.Array, ...]
    ids: tuple[RaggedArray, ...]
    tokeniser: Tokeniser | None

    @classmethod
    def of(cls, rows: pa.Table, longest: int, tokeniser: Tokeniser | None) -> TokenSample:
        """Tokenise texts.

        Args:
            rows: their text columns.
            longest: exact lengths are only needed up to this number of tokens; larger lengths may be too
                small, but stay above it.
        """
        texts = [column.combine_chunks().fill_null("") for column in rows.columns]
        columns = tuple(pc.utf8_slice_codeunits(column, 0, _CHARACTERS * longest) for column in texts)
        if tokeniser is not None:
            return cls(columns, tuple(map(tokeniser.token_ids, columns)), tokeniser)
        encode = functools.partial(_default_tokenizer().encode_batch_fast, add_special_tokens=False)
        ids = [RaggedArray.from_lists([text.ids for text in encode(texts.to_pylist())]) for texts in columns]
        return cls(columns, tuple(ids), tokeniser)

    @classmethod
    def of_task(
        cls, task: Task, table: pa.Table, longest: int, tokeniser: Tokeniser | None = None
    ) -> TokenSample:
        """Tokenise up to 1,000 random rows of a task; for `longest` see `of`."""
        chosen = np.random.default_rng(0).permutation(len(table))[:SAMPLE]
        schema = pa.schema([(name, pa.string()) for name in task.columns])
        return cls.of(table.select(list(task.columns)).take(np.sort(chosen)).cast(schema), longest, tokeniser)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each row, with special tokens."""
        count = len(self.columns)
        specials = count + 1 if self.tokeniser is None else self.tokeniser.layout(count).n_specials
        lengths: np.ndarray = np.sum([column.lengths for column in self.ids], axis=0) + specials
        return lengths

    def unknown_text(self) -> list[str]:
        """A warning if the vocabulary does not suit the texts."""
        ids = np.concatenate([column.values for column in self.ids])
        if not len(ids):
            return []
        if self.tokeniser is not None:
            unknown = np.mean(ids == self.tokeniser.unknown_id)
            message = f"{unknown:.0%} of the tokens are unknown to the vocabulary of the teacher"
            return [message] if unknown > MAX_UNKNOWN_SHARE else []
        unknown = np.mean(ids == _default_tokenizer().token_to_id("[UNK]"))
        letters, latin = (_count(self.columns, pattern) for pattern in (r"\p{L}", r"\p{Latin}"))
        foreign = (letters - latin) / max(1, letters)
        if foreign <= MAX_FOREIGN_SHARE and unknown <= MAX_UNKNOWN_SHARE:
            return []
        return [
            f"{foreign:.0%} of the letters are not Latin and {unknown:.0%} of the tokens are unknown to the "
            "default vocabulary, which is English: use an encoder or a teacher for this language "
            "(`teacher='NAME'`)"
        ]


def token_problems(
    task: Task, split: SplitStatistics, max_length: int, tokeniser: Tokeniser | None = None
) -> list[Problem]:
    """Warnings for rows that will be truncated, and for text outside the vocabulary.

    The rows of the sample are tokenised. Contexts of `span` tasks are split into windows and never truncated.

    Args:
        max_length: tokens kept per row, special tokens included.
        tokeniser: the teacher's; None = the default teacher's.
    """
    tokens = TokenSample.of(split.sample, max_length, tokeniser)
    messages = tokens.unknown_text()
    share = float(np.mean(tokens.lengths > max_length)) if split.sample.num_rows else 0.0
    if not task.type.predicts_spans and share:
        sampled = split.sample.num_rows
        of = "" if sampled == split.rows else f" ({sampled:,} were sampled)"
        whose = "default" if tokeniser is None else "teacher's"
        truncated = (
            f"{share:.1%} of the rows{of} have more than {max_length:,} tokens of the {whose} tokeniser, and "
            f"will be truncated if the max_length of a model is {max_length:,}; a larger max_length "
            "keeps more"
        )
        messages = [truncated, *messages]
    if task.type.predicts_spans and (count := int((tokens.ids[0].lengths > MAX_QUESTION).sum())):
        of = f" of {split.sample.num_rows:,} sampled ones" if split.sample.num_rows < split.rows else ""
        messages.append(
            f"{counted(count, 'question')}{of} {'has' if count == 1 else 'have'} more than {MAX_QUESTION} "
            "tokens; the rest is cut off"
        )
    return [Problem(split.path, None, message, "warning") for message in messages]


def truncation_message(rows: str, share: float, most: str, setting: str = "max_length") -> str:
    """The warning that a share of some rows will be truncated.

    Args:
        rows: the rows, such as "the training rows".
        share: the share of them that is truncated.
        most: the length to which rows are truncated, such as "128 tokens".
        setting: the setting to change.
    """
    return (
        f"{share:.1%} of {rows} have more than {most}, and will be truncated; a larger {setting} keeps more"
    )


def _count(columns: Sequence[pa.Array], pattern: str) -> int:
    """How often a pattern occurs in all texts together."""
    return sum(pc.sum(pc.count_substring_regex(column, pattern)).as_py() for column in columns)


@functools.cache
def _default_tokenizer() -> Tokenizer:
    """The default teacher's tokeniser, without torch or transformers."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(embedded_encoder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
