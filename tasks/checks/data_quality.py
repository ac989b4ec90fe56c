"""Warnings about the texts of a split: leakage, truncation, and unreadable text."""

from __future__ import annotations

import functools
from collections.abc import Sequence
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


def token_problems(
    task: Task, split: SplitStatistics, max_length: int, tokeniser: Tokeniser | None = None
) -> list[Problem]:
    """Warnings for rows that will be truncated, and for text outside the vocabulary.

    The rows of the sample are tokenised. Rows of `span` tasks are split into windows and never truncated.

    Args:
        max_length: tokens kept per row, special tokens included.
        tokeniser: the teacher's; None = the default teacher's, whose vocabulary is English.
    """
    columns = _truncated(split.sample, max_length)
    ids = _token_ids(columns, tokeniser)
    if not any(len(column.values) for column in ids):
        return []
    messages = []
    share = float(np.mean(_lengths(ids, tokeniser) > max_length))
    if not task.type.predicts_spans and share:
        sampled = split.sample.num_rows
        of = "" if sampled == split.rows else f" ({sampled:,} were sampled)"
        whose = "default" if tokeniser is None else "teacher's"
        messages.append(
            f"{share:.1%} of the rows{of} have more than {max_length:,} tokens of the {whose} tokeniser, and "
            f"will be truncated if the max_length of a model is {max_length:,}; a larger max_length "
            "keeps more"
        )
    unknown_id = _default_tokenizer().token_to_id("[UNK]") if tokeniser is None else tokeniser.unknown_id
    unknown = np.mean(np.concatenate([column.values for column in ids]) == unknown_id)
    if tokeniser is not None and unknown > MAX_UNKNOWN_SHARE:
        messages.append(f"{unknown:.0%} of the tokens are unknown to the vocabulary of the teacher")
    letters, latin = _count(columns, r"\p{L}"), _count(columns, r"\p{Latin}")
    foreign = (letters - latin) / max(1, letters)
    if tokeniser is None and (foreign > MAX_FOREIGN_SHARE or unknown > MAX_UNKNOWN_SHARE):
        messages.append(
            f"{foreign:.0%} of the letters are not Latin and {unknown:.0%} of the tokens are unknown to the "
            "default vocabulary, which is English: use an encoder or a teacher for this language "
            "(`teacher='NAME'`)"
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


def token_lengths(
    task: Task, table: pa.Table, longest: int, tokeniser: Tokeniser | None = None
) -> np.ndarray:
    """The number of tokens of up to 1,000 random rows, with special tokens.

    Args:
        longest: exact counts are only needed up to this number; larger counts may be too small, but stay
            above it.
        tokeniser: None = the default teacher's.
    """
    chosen = np.random.default_rng(0).permutation(len(table))[:SAMPLE]
    schema = pa.schema([(name, pa.string()) for name in task.columns])
    sample = table.select(list(task.columns)).take(np.sort(chosen)).cast(schema)
    return _lengths(_token_ids(_truncated(sample, longest), tokeniser), tokeniser)


def _truncated(sample: pa.Table, longest: int) -> list[pa.Array]:
    """The texts of each column, truncated to at least `longest` tokens."""
    texts = [column.combine_chunks().fill_null("") for column in sample.columns]
    return [pc.utf8_slice_codeunits(column, 0, _CHARACTERS * longest) for column in texts]


def _token_ids(columns: Sequence[pa.Array], tokeniser: Tokeniser | None) -> list[RaggedArray]:
    """The token ids of the texts of each column, without special tokens."""
    if tokeniser is not None:
        return [tokeniser.token_ids(column) for column in columns]
    encode = functools.partial(_default_tokenizer().encode_batch_fast, add_special_tokens=False)
    return [RaggedArray.from_lists([text.ids for text in encode(column.to_pylist())]) for column in columns]


def _lengths(ids: Sequence[RaggedArray], tokeniser: Tokeniser | None) -> np.ndarray:
    """The number of tokens of each row, with special tokens."""
    specials = len(ids) + 1 if tokeniser is None else tokeniser.layout(len(ids)).n_specials
    lengths: np.ndarray = np.sum([column.lengths for column in ids], axis=0) + specials
    return lengths


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
