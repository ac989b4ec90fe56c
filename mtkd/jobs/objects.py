"""Models and losses passed as objects instead of by name, and what a run records about them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from mtkd.losses.base import LossTerm
from mtkd.models.multitask import MultiTaskModel, SavedModel
from mtkd.teachers.reference import TeacherRef
from tasks.files import digest_bytes
from tasks.tokeniser import Tokeniser


def digest_weights(module: nn.Module) -> str:
    """A SHA-256 of the parameters and buffers of a module, and their names."""
    parts: list[bytes | str] = []
    for name, value in sorted(module.state_dict().items()):
        flat = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
        parts += [name, str(value.dtype), np.asarray(flat).tobytes()]
    return digest_bytes(*parts)


def describe_losses(losses: Mapping[str, LossTerm]) -> dict[str, Any]:
    """What determines the result of a run with these terms: classes, plain attributes and weights."""
    plain = (bool, int, float, str, type(None))
    return {
        name: {
            "class": type(term).__qualname__,
            "weights": digest_weights(term)[:16],
            **{key: value for key, value in vars(term).items() if isinstance(value, plain)},
        }
        for name, term in losses.items()
    }


@dataclass(frozen=True)
class TeacherObject(TeacherRef):
    """A teacher passed as an object.

    Its parameters are frozen and may be moved to another device; otherwise it is not changed.
    """

    model: MultiTaskModel | None = None

    @staticmethod
    def of(model: MultiTaskModel) -> TeacherObject:
        """The reference to a model."""
        config = model.encoder.config
        saved = SavedModel(config.model_dump(), list(model.tasks.values()), model.info)
        return TeacherObject(type(model).__name__, saved, config, model=model)

    @property
    def digest(self) -> str:
        """A digest of the weights."""
        assert self.model is not None
        return digest_weights(self.model)

    def tokeniser(self) -> Tokeniser:
        """The teacher's tokeniser."""
        assert self.model is not None
        return self.model.tokeniser

    def load(self, max_length: int | None) -> MultiTaskModel:
        """A copy of the teacher that shares its weights."""
        assert self.model is not None
        model = copy.copy(self.model)
        model.info = replace(model.info)
        if max_length is not None:
            model.read_at_most(max_length)
        return model.eval()
