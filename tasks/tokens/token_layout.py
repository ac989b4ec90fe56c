"""How a tokeniser joins one or two texts: the special tokens around them, and token type ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Layout:
    """How a tokeniser joins one or two texts: special tokens before, between and after them.

    Attributes:
        specials: n_texts + 1 tuples of special token ids: before, between and after the texts.
        special_type_ids: the token type id of each of these special tokens.
        text_type_ids: the token type id of the tokens of each text.
        n_second_starts: how many of the special tokens between two texts belong to the start of the second
            one, such as its [CLS]; 0 unless the texts are side by side.
    """

    specials: tuple[tuple[int, ...], ...]
    special_type_ids: tuple[tuple[int, ...], ...]
    text_type_ids: tuple[int, ...]
    n_second_starts: int = 0

    @property
    def n_specials(self) -> int:
        """Number of special tokens."""
        return sum(map(len, self.specials))

    @property
    def n_ends(self) -> tuple[int, ...]:
        """For each run of special tokens, how many of its first tokens follow a text and belong to it."""
        after_texts = [len(run) for run in self.specials[1:]]
        if self.n_second_starts:
            after_texts[0] -= self.n_second_starts
        return (0, *after_texts)

    def beside(self) -> Layout:
        """Two texts side by side, each with the special tokens of this layout of one text."""
        (before, after), (types_before, types_after) = self.specials, self.special_type_ids
        return Layout(
            (before, after + before, after),
            (types_before, types_after + types_before, types_after),
            self.text_type_ids * 2,
            len(before),
        )


def probe_layout(backend: Tokenizer, n_texts: int, token_type_ids: bool) -> Layout:
    """Encode a known text and record what surrounds it; type ids are 0 unless `token_type_ids`."""
    encoding = backend.encode("a", "a" if n_texts == 2 else None)
    specials: list[list[tuple[int, int]]] = [[] for _ in range(n_texts + 1)]
    text_type_ids = [0] * n_texts
    slot = 0
    for token, kind, text in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
        type_id = kind if token_type_ids else 0
        if text is None:
            specials[slot].append((token, type_id))
        else:
            slot, text_type_ids[text] = text + 1, type_id
    return Layout(
        tuple(tuple(token for token, _ in run) for run in specials),
        tuple(tuple(type_id for _, type_id in run) for run in specials),
        tuple(text_type_ids),
    )
