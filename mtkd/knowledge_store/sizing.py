"""Estimating the size of a store, and choosing how much of the hidden states fits a size budget."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mtkd.knowledge_store.contents import Contents, LogitsLayout
from mtkd.knowledge_store.shard_files import header_bytes
from tasks.common.errors import UserError

# Findings of Liu et al. 2021 (sections 4 and 5): a larger amount than this does not help or even harms
# (figures 8 and 9), a smaller fraction of the tokens or the width lowers the scores (figures 4, 5 and 7), and
# one or two layers do as well as all (figure 3).
MAX_AMOUNT = 10.0
MIN_LENGTH = 0.05
MIN_WIDTH = 0.2
MAX_SUGGESTED_TOKENS = 50


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """The outputs of a task, the (n,) number of real tokens per row, and how many of them may be kept."""

    outputs: LogitsLayout
    tokens: np.ndarray
    eligible: np.ndarray

    def entries(self, tokens: int | None) -> dict[str, int]:
        """Number of entries of each kind of field if at most `tokens` tokens per row are kept."""
        n_kept = self.eligible if tokens is None else np.minimum(self.eligible, tokens)
        return {"row": len(self.tokens), "token": int(self.tokens.sum()), "kept": int(n_kept.sum())}


def bytes_per_output(
    contents: Contents, tasks: Mapping[str, TokenCounts], n_shards: int, index_bytes: int
) -> dict[str, int]:
    """Bytes of each kind of output, and of everything else that is written ("index").

    Args:
        index_bytes: bytes of the row indices.
    """
    selection = contents.need.selection
    bytes_of: dict[str, int] = {}
    for token_counts in tasks.values():
        entries = token_counts.entries(selection.tokens if selection else None)
        for field in contents.fields(token_counts.outputs):
            kind = "index" if field.name in ("tokens", "kept") else field.of
            bytes_of[kind] = bytes_of.get(kind, 0) + entries[field.per] * field.bytes
    bytes_of["index"] = (
        bytes_of.get("index", 0) + n_shards * header_bytes(contents.fields(LogitsLayout(1))) + index_bytes
    )
    return bytes_of


def hidden_state_amount(depth: int, tokens: int, width: float) -> float:
    """AHSK: the amount of hidden-state knowledge kept per full-length row, N_D * N_L * N_W (section 5.1)."""
    return depth * tokens * width


def choose_selection(
    budget: int, most_depth: int, max_length: int, size_of: Callable[[int, int, float], int]
) -> tuple[int, int, float]:
    """Choose the best (N_D, N_L, N_W) within a budget, according to the paper's findings.

    The choice keeps at least 5% of the tokens and 20% of the width if that fits, and then as much as possible
    up to an amount of 10. Ties go to the fewest layers, then to the largest width.

    Args:
        size_of: (depth, tokens, width) -> bytes of the store.

    Raises:
        UserError: nothing fits; the error gives the minimum size.
    """
    grid = itertools.product(
        range(1, most_depth + 1),
        range(1, min(MAX_SUGGESTED_TOKENS, max_length) + 1),
        [n / 10 for n in range(1, 11)],
    )
    sized = [(setting, size_of(*setting)) for setting in grid if hidden_state_amount(*setting) <= MAX_AMOUNT]
    fitting = [setting for setting, size in sized if size <= budget]
    if not fitting:
        smallest = min(size for _, size in sized)
        raise UserError(
            f"no store fits into a budget of {budget:,} bytes",
            expected=f"{smallest:,} bytes or more for these rows and this `dtype`",
            hint="use a larger `budget`, a smaller `dtype` (int8), or fewer rows",
        )

    def quality(setting: tuple[int, int, float]) -> tuple[bool, float, int, float]:
        depth, tokens, width = setting
        sound = tokens >= MIN_LENGTH * max_length and width >= MIN_WIDTH
        return sound, round(hidden_state_amount(*setting), 6), -depth, width

    return max(fitting, key=quality)
