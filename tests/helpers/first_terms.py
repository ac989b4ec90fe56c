"""A callback that records the loss terms of the first step."""

from __future__ import annotations

from mtkd.training.callbacks import Callback, TrainingControl, TrainingState


class FirstTerms(Callback):
    """Records the values of the loss terms in the first step."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}

    def on_step_end(self, state: TrainingState, control: TrainingControl) -> None:
        self.first = self.first or dict(state.terms)
