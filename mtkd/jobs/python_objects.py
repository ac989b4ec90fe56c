"""Models and losses passed as objects instead of by name, and what a run records about them."""

from __future__ import annotations

import copy
import types
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn

from mtkd.losses.loss_term import LossTerm
from mtkd.models.digest import digest_weights
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import SavedModel
from mtkd.teachers.teacher_ref import TeacherRef, in_memory
from tasks.errors import UserError, a_type
from tasks.files import digest_bytes
from tasks.tokeniser import Tokeniser

_PLAIN = (bool, int, float, str, type(None))
_ATTRIBUTES = (*_PLAIN, list, tuple, Set, Mapping, torch.Tensor, np.ndarray)
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))


def describe_module(module: nn.Module) -> dict[str, Any]:
    """What determines what a module computes: its class, the code of its class, and its weights."""
    return {
        "class": type(module).__qualname__,
        "code": digest_code(type(module))[:16],
        "weights": digest_weights(module)[:16],
    }


def describe_losses(losses: Mapping[str, LossTerm]) -> dict[str, Any]:
    """What determines the result of a run with these terms: as `describe_module`, and their attributes."""
    return {
        name: {
            **describe_module(term),
            **{key: _describe(value) for key, value in vars(term).items() if key not in _MODULE_ATTRIBUTES},
        }
        for name, term in losses.items()
    }


def _describe(value: Any) -> Any:
    """An attribute as JSON: numbers and text, collections of them, digests of arrays and of code.

    Of any other object it is the class and, if it has some, the attributes.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [_describe(item) for item in value]
    if isinstance(value, Set):
        return sorted(map(repr, map(_describe, value)))
    if isinstance(value, Mapping):
        return {str(key): _describe(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor | np.ndarray):
        array = torch.as_tensor(value).detach().cpu()
        raw = array.contiguous().view(-1).view(torch.uint8) if array.numel() else array
        return [str(array.dtype), list(array.shape), digest_bytes(raw.numpy().tobytes())[:16]]
    if isinstance(value, types.FunctionType):
        return digest_bytes(*_code_parts(value.__code__))[:16]
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    attributes = vars(value) if is_dataclass(value) or isinstance(value, BaseModel) else {}
    return (
        {"class": kind, **{key: _describe(item) for key, item in attributes.items()}} if attributes else kind
    )


def digest_code(kind: type) -> str:
    """A SHA-256 of the methods and attributes of a class and of its bases outside torch and mtkd.

    The methods count as compiled, so comments and line numbers do not matter. Functions that they call are
    not included.
    """
    contents: list[bytes | str] = []
    for base in kind.__mro__:
        if base.__module__.split(".")[0] in ("builtins", "torch", "mtkd"):
            continue
        for name, value in sorted(vars(base).items()):
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, types.FunctionType):
                contents += [name, *_code_parts(function.__code__)]
            elif isinstance(value, _ATTRIBUTES) and not name.startswith("__"):
                contents += [name, repr(_describe(value))]
    return digest_bytes(*contents)


def _code_parts(code: types.CodeType) -> Iterator[bytes | str]:
    yield code.co_code
    yield repr((code.co_names, code.co_varnames))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_parts(constant)
        else:
            # the order of a set of strings changes from process to process
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def require_objects(what: str, values: Any, kind: type) -> None:
    """Refuse an argument that is not a list (or dict) of instances of `kind`, such as a class or a function.

    Raises:
        UserError: names the argument `what`, and the first value of another type.
    """
    expected = f"a list of objects whose classes extend mtkd.{kind.__name__}"
    if isinstance(values, str) or not isinstance(values, Mapping | Sequence):
        raise UserError(f"`{what}` cannot be {a_type(values)}", expected=expected)
    for value in values.values() if isinstance(values, Mapping) else values:
        if isinstance(value, type):
            raise UserError(
                f"`{what}` holds the class {value.__name__}", expected=expected, hint=f"{value.__name__}(...)"
            )
        if not isinstance(value, kind):
            raise UserError(f"`{what}` holds {a_type(value)}", expected=expected)
        if isinstance(value, nn.Module) and "_parameters" not in vars(value):
            raise UserError(f"the `__init__` of {type(value).__name__} does not call `super().__init__()`")


@dataclass(frozen=True)
class TeacherObject(TeacherRef):
    """A teacher passed as an object.

    Its parameters are frozen and may be moved to another device; otherwise it is not changed.
    """

    model: MultiTaskModel | None = None

    @staticmethod
    def of(model: MultiTaskModel) -> TeacherObject:
        """A teacher from a model in memory."""
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

    def for_workers(self) -> TeacherRef:
        """Other processes cannot load it; raises UserError."""
        raise in_memory(self.name)

    def load(self, max_length: int | None) -> MultiTaskModel:
        """A copy of the teacher that shares its weights."""
        assert self.model is not None
        model = copy.copy(self.model)
        model.info = replace(model.info)
        if max_length is not None:
            model.set_max_length(max_length)
        return model.eval()
