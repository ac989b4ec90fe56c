"""The records that models, teachers and losses exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Need:
    """What a loss term needs of a model, or what a model or teacher offers.

    Attributes:
        logits: the task head's logits.
        hidden: layers whose hidden states are needed; 0 is the embedding layer's output.
        tokens: True if teacher and student must read the same tokens (hidden states are compared
            token by token).
    """

    logits: bool = False
    hidden: frozenset[int] = frozenset()
    tokens: bool = False

    def __or__(self, other: Need) -> Need:
        return Need(self.logits or other.logits, self.hidden | other.hidden, self.tokens or other.tokens)

    def missing_from(self, offers: Need) -> list[str]:
        """What of this need `offers` does not cover, in words; empty if all is covered."""
        missing = ["logits"] if self.logits and not offers.logits else []
        missing += [f"hidden states of layer {n}" for n in sorted(self.hidden - offers.hidden)]
        if self.tokens and not offers.tokens:
            missing.append("hidden states token by token")
        return missing


LOGITS = Need(logits=True)


@dataclass(frozen=True)
class EncoderOutput:
    """What an encoder was asked for and nothing else.

    Attributes:
        pooled: (B, D) one vector a row, what the task heads read.
        hidden: layer -> (B, L, d) hidden states, the layers that were asked for.
    """

    pooled: Tensor
    hidden: Mapping[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Signal:
    """What a teacher or a student says about one batch.

    Attributes:
        logits: (B, C) of the batch's task; None if they were not asked for.
        hidden: layer -> (B, L, d).
        mask: (B, L) bool, True = real token, for the hidden states; None without them.
    """

    logits: Tensor | None
    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None
