"""Models and losses that are given as objects, not by name: what a run records of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from mtkd.losses.base import LossTerm
from mtkd.losses.objective import Objective
from mtkd.losses.settings import Term
from mtkd.models.multitask import MultiTaskModel, SavedModel
from mtkd.outputs import EncoderSpec, OutputSpec
from mtkd.teachers.reference import TeacherRef
from tasks.errors import UserError
from tasks.files import digest_bytes
from tasks.tokeniser import Tokeniser

Losses = Mapping[str, LossTerm] | Sequence[LossTerm]


def digest_weights(module: nn.Module) -> str:
    """The SHA-256 of a module's parameters and buffers, with their names."""
    parts: list[bytes | str] = []
    for name, value in sorted(module.state_dict().items()):
        flat = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
        parts += [name, str(value.dtype), np.asarray(flat).tobytes()]
    return digest_bytes(*parts)


def named_losses(losses: Losses) -> dict[str, LossTerm]:
    """Name -> term; terms of a list are named after their classes."""
    if isinstance(losses, Mapping):
        return dict(losses)
    found: dict[str, LossTerm] = {}
    for term in losses:
        kind = type(term).__name__
        names = [kind, *(f"{kind}-{number}" for number in range(2, len(losses) + 1))]
        found[next(name for name in names if name not in found)] = term
    return found


def describe_losses(losses: Mapping[str, LossTerm]) -> dict[str, Any]:
    """What decides the result of a run on these terms: classes, plain settings and weights."""
    plain = (bool, int, float, str, type(None))
    return {
        name: {
            "class": type(term).__qualname__,
            "weights": digest_weights(term)[:16],
            **{key: value for key, value in vars(term).items() if isinstance(value, plain)},
        }
        for name, term in losses.items()
    }


def objective_of(
    losses: Mapping[str, LossTerm], student: EncoderSpec, teacher: EncoderSpec | None, slow_build: float
) -> Objective:
    """The sum of ready-made terms, each of weight 1.

    Raises:
        UserError: there is no term, or one needs what student or teacher does not give.
    """
    if not losses:
        raise UserError("there is no loss term to train on", hint="pass one or more LossTerm objects")
    for name, term in losses.items():
        for who, need, spec in (
            ("student", term.student_need, student),
            ("teacher", term.teacher_need, teacher),
        ):
            if spec is None and need == OutputSpec():
                continue
            offers = OutputSpec() if spec is None else spec.offers | OutputSpec(logits=True)
            if missing := need.raw.missing_from(offers):
                family = f" ({spec.family})" if spec else ", and there is none"
                raise UserError(f"the term {name!r} needs {', '.join(missing)} of the {who}{family}")
    return Objective(losses, {name: Term() for name in losses}, slow_build)


@dataclass(frozen=True)
class TeacherObject(TeacherRef):
    """A teacher that is given itself.

    Its parameters are frozen and may be moved to another device; otherwise it is not changed.
    """

    model: MultiTaskModel | None = None

    @staticmethod
    def of(model: MultiTaskModel) -> TeacherObject:
        """Look at a model."""
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
        """The teacher, as a model of its own that shares its weights."""
        assert self.model is not None
        model = copy.copy(self.model)
        model.info = replace(model.info)
        if max_length is not None:
            model.read_at_most(max_length)
        return model.eval()
