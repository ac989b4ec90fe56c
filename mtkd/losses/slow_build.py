"""Slow build (WaLDORf Eq. 6-7): layers are switched on one after the other, from the lowest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mtkd.losses.base import LossTerm

_ROUNDING = 1e-9  # a share of steps is a quotient


@dataclass(frozen=True)
class SlowBuild:
    """Which of the student's layers are on as training goes on.

    Of K layers the k-th, from 0, is on from k / K of `share`: each has as many steps before the next joins
    in. Terms that compare no layers start when `share` is over.

    Attributes:
        share: of the steps; 0 = everything is on from the start.
        layers: the student's layers that some term compares, ascending.
    """

    share: float = 0.0
    layers: tuple[int, ...] = ()

    @classmethod
    def of(cls, share: float, terms: Iterable[LossTerm]) -> SlowBuild:
        """That of some terms; where none of them compares layers there is nothing to build."""
        layers = sorted({layer for term in terms for layer, _ in term.compared})
        return cls(share, tuple(layers)) if layers else cls()

    def done(self, progress: float) -> bool:
        """True once everything is on.

        Args:
            progress: share of the steps that are done, 0 to 1.
        """
        return progress + _ROUNDING >= self.share

    def on(self, progress: float) -> frozenset[int]:
        """The layers that are on."""
        each = self.share / max(len(self.layers), 1)
        return frozenset(layer for k, layer in enumerate(self.layers) if progress + _ROUNDING >= k * each)
