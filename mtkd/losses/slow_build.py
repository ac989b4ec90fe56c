"""Slow build (WaLDORf Eq. 6-7): the losses on layers are switched on one after another, from the lowest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mtkd.losses.loss_term import LossTerm

_ROUNDING = 1e-9  # tolerance, because a fraction of the steps is a rounded quotient


@dataclass(frozen=True)
class SlowBuild:
    """Which student layers are switched on at a point of the training.

    Of K layers, layer k (from 0) is switched on after `fraction` * k / K of the steps, so equally many steps
    lie between two layers. Terms that do not compare layers start after `fraction` of the steps.

    Attributes:
        fraction: the fraction of the steps during which layers are switched on; 0 = no slow build.
        layers: the student layers that at least one term compares, in ascending order.
    """

    fraction: float = 0.0
    layers: tuple[int, ...] = ()

    @classmethod
    def of(cls, fraction: float, terms: Iterable[LossTerm]) -> SlowBuild:
        """Build the schedule for some terms; if none of them compares layers, there is no slow build."""
        layers = sorted({layer for term in terms for layer, _ in term.slow_build_pairs})
        return cls(fraction, tuple(layers)) if layers else cls()

    def done(self, progress: float) -> bool:
        """True once everything is switched on.

        Args:
            progress: the fraction of the training steps already done, 0 to 1.
        """
        return progress + _ROUNDING >= self.fraction

    def progress_since(self, progress: float) -> float:
        """The fraction done of the steps that follow slow build, 0 to 1; 0 while layers are switched on."""
        return max(0.0, (progress - self.fraction) / (1 - self.fraction))

    def active_layers(self, progress: float) -> frozenset[int]:
        """The layers that are switched on."""
        interval = self.fraction / max(len(self.layers), 1)
        return frozenset(layer for k, layer in enumerate(self.layers) if progress + _ROUNDING >= k * interval)
