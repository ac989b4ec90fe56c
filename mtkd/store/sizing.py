"""How large a store will be, and how much of the hidden states fits into a budget."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mtkd.store.contents import Contents, Outputs
from mtkd.store.shard_files import header_bytes
from tasks.errors import UserError

# What the paper found (sections 4 and 5): more knowledge than this gains nothing or harms (figures 8 and 9),
# fewer tokens than this share of a row and less of the width than this cost score (figures 4, 5 and 7), and
# one or two layers do as well as all (figure 3).
MOST_UNITS, LEAST_LENGTH, LEAST_WIDTH, MOST_TOKENS = 10.0, 0.05, 0.2, 50


@dataclass(frozen=True, eq=False)
class Counted:
    """The rows of one task: its logits, (n,) real tokens of each, and (n,) how many of them may be kept."""

    outputs: Outputs
    tokens: np.ndarray
    eligible: np.ndarray

    def entries(self, tokens: int | None) -> dict[str, int]:
        """Entries of each kind of field, if at most so many tokens of a row are kept."""
        kept = self.eligible if tokens is None else np.minimum(self.eligible, tokens)
        return {"row": len(self.tokens), "token": int(self.tokens.sum()), "kept": int(kept.sum())}


def sizes(contents: Contents, tasks: Mapping[str, Counted], shards: int, tables: int) -> dict[str, int]:
    """Bytes of each kind of knowledge, and of what else is written ("index").

    Args:
        shards: how many files.
        tables: bytes of what says which row lies where.
    """
    selection = contents.need.selection
    found: dict[str, int] = {}
    for counted in tasks.values():
        entries = counted.entries(selection.tokens if selection else None)
        for field in contents.fields(counted.outputs):
            kind = "index" if field.name in ("tokens", "kept") else field.of
            found[kind] = found.get(kind, 0) + entries[field.per] * field.bytes
    found["index"] = found.get("index", 0) + shards * header_bytes(contents.fields(Outputs(1))) + tables
    return found


def amount(depth: int, tokens: int, width: float) -> float:
    """AHSK: the units of hidden states that are kept of a full-length row, N_D * N_L * N_W (section 5.1)."""
    return depth * tokens * width


def choose_selection(
    budget: int, most_depth: int, max_length: int, size_of: Callable[[int, int, float], int]
) -> tuple[int, int, float]:
    """The best (N_D, N_L, N_W) under a budget, by the paper's findings.

    As many units as fit, but not more than 10, of at least a twentieth of the tokens and a fifth of the width
    where that fits; then as few layers as may be, and of these the one that keeps most of the width.

    Args:
        size_of: bytes of a store with (depth, tokens, width).

    Raises:
        UserError: nothing fits; how much the least would take.
    """
    grid = itertools.product(
        range(1, most_depth + 1),
        range(1, min(MOST_TOKENS, max_length) + 1),
        [n / 10 for n in range(1, 11)],
    )
    sized = [(setting, size_of(*setting)) for setting in grid if amount(*setting) <= MOST_UNITS]
    fitting = [setting for setting, size in sized if size <= budget]
    if not fitting:
        least = min(size for _, size in sized)
        raise UserError(
            f"nothing fits into a budget of {budget:,} bytes",
            expected=f"{least:,} bytes or more for these rows and this `dtype`",
            hint="a larger `budget`, a smaller `dtype` (int8), or fewer rows",
        )

    def worth(setting: tuple[int, int, float]) -> tuple[bool, float, int, float]:
        depth, tokens, width = setting
        sound = tokens >= LEAST_LENGTH * max_length and width >= LEAST_WIDTH
        return sound, round(amount(*setting), 6), -depth, width

    return max(fitting, key=worth)
