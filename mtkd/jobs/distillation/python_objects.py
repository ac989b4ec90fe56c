"""Students and losses passed as Python objects instead of by name, and what a run records about them."""

from __future__ import annotations

import copy
import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mtkd.losses.loss_term import LossTerm
from mtkd.losses.objective import Term, named_losses
from mtkd.model_files import exported
from mtkd.models.digest import digest_weights, tensor_bytes
from mtkd.models.encoders.encoder import Encoder
from mtkd.models.encoders.encoder_registry import encoder_class
from mtkd.models.exported import ExportedModel
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.user_class_errors import is_user_class
from mtkd.outputs import OutputSpec
from mtkd.setting_errors import validate
from mtkd.settings import AnyTermSettings
from mtkd.strict_settings import StrictSettings
from mtkd.training.callbacks import Callback, TrainingControl, TrainingState
from tasks.common.errors import UserError, a_type, brief, reason_of
from tasks.common.sha256 import digest_bytes

Losses = Mapping[str, Term | Mapping[str, Any]] | Sequence[Term | Mapping[str, Any]]
_PLAIN_TYPES = (bool, int, float, str, type(None))
_RECORDED_TYPES = (*_PLAIN_TYPES, list, tuple, Set, Mapping, torch.Tensor, np.ndarray)
_MAX_DEPTH = 6  # how far attributes of attributes are followed
_MODULE_ATTRIBUTES = frozenset([*vars(nn.Module()), "_compiled_call_impl"])


def copy_of_student(student: nn.Module) -> nn.Module:
    """A copy to train in place of the user's object, with the same tokeniser; UserError if impossible."""
    tokeniser = getattr(student, "tokeniser", None)
    copied: nn.Module = _deepcopy("`student`", student, {id(tokeniser): tokeniser})
    return copied


def parse_losses(losses: Losses) -> dict[str, Term]:
    """The losses by name, with the settings of terms in place of tables; UserError if they are invalid."""
    given = losses if isinstance(losses, Mapping) else {str(n): term for n, term in enumerate(losses)}
    objects = {name: term for name, term in given.items() if isinstance(term, LossTerm)}
    require_valid_losses(objects.values())
    tables = {name: term for name, term in given.items() if name not in objects}
    for name, term in tables.items():
        if isinstance(term, Mapping) and "loss" not in term:
            raise UserError(
                f"`losses[{name!r}]` does not name its loss",
                expected='settings such as {"loss": "logits_mse"}',
            )
    parsed: dict[str, Term] = validate(_Terms, {"terms": tables}).terms | objects
    terms = {name: parsed[name] for name in given}
    return terms if isinstance(losses, Mapping) else named_losses(list(terms.values()))


class _Terms(StrictSettings):
    terms: dict[str, AnyTermSettings]


def copies_of_losses(losses: Mapping[str, Term]) -> dict[str, Term]:
    """Copies to train in place of the user's objects; UserError if they cannot be copied.

    Modules that several losses share are still shared.
    """
    copied: dict[str, Term] = _deepcopy("`losses`", dict(losses), {})
    return copied


def _deepcopy(name: str, value: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(value, memo)
    except Exception as error:
        raise UserError(
            f"{name} cannot be copied: {reason_of(error)}",
            expected="objects that `copy.deepcopy` can copy, because copies are trained",
            hint="define `__deepcopy__`, or `detach()` tensors that are computed from weights",
        ) from error


class StateOfLosses(Callback):
    """Warns if losses of the user's own classes keep state in attributes, which checkpoints do not hold.

    Args:
        losses: the loss terms that are trained.
        warn: called with the warning.
    """

    def __init__(self, losses: Mapping[str, Term], warn: Callable[[str], None]):
        self._losses = {
            name: term
            for name, term in losses.items()
            if isinstance(term, LossTerm) and is_user_class(type(term))
        }
        self._before = {name: _attributes(term) for name, term in self._losses.items()}
        self._warn = warn

    def on_save(self, state: TrainingState, control: TrainingControl) -> None:
        """Warn once of each loss with attributes that have changed since the start."""
        for name, before in list(self._before.items()):
            now = _attributes(self._losses[name])
            changed = [key for key in now if now[key] != before.get(key)]
            if changed:
                del self._before[name]
                self._warn(
                    f"the loss {name!r} changes its attribute {changed[0]!r} during training. Checkpoints do "
                    "not hold it, so if the loss depends on it, a resumed run differs from an uninterrupted "
                    f"one: keep it in a buffer (`self.register_buffer({changed[0]!r}, torch.tensor(...))`)"
                )


def describe_module(module: nn.Module) -> dict[str, Any]:
    """What determines what a module computes: its class, the code of its class, and its weights."""
    return {
        "class": type(module).__qualname__,
        "code": digest_code(type(module))[:16],
        "weights": digest_weights(module)[:16],
    }


def describe_losses(losses: Mapping[str, Term]) -> dict[str, Any]:
    """What determines what loss terms compute: `describe_module` of each object, and its attributes."""
    return {
        name: {**describe_module(term), **_attributes(term)}
        if isinstance(term, LossTerm)
        else term.model_dump(mode="json")
        for name, term in losses.items()
    }


def _attributes(term: LossTerm) -> dict[str, Any]:
    """The attributes of a loss other than weights, buffers and modules."""
    return {key: _describe(value) for key, value in vars(term).items() if key not in _MODULE_ATTRIBUTES}


def _describe(value: Any, depth: int = 0) -> Any:
    """An attribute as plain JSON values, in which digests stand for arrays and for code.

    Any other object becomes the name of its class and its attributes.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, _PLAIN_TYPES):
        return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if depth == _MAX_DEPTH:
        return kind
    inner = partial(_describe, depth=depth + 1)
    if isinstance(value, list | tuple):
        return [inner(item) for item in value]
    if isinstance(value, Set):
        return sorted(map(repr, map(inner, value)))
    if isinstance(value, Mapping):
        return {str(key): inner(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), digest_bytes(tensor_bytes(value))[:16], list(value.shape)]
    if isinstance(value, np.ndarray):
        content = repr(value.tolist()) if value.dtype.hasobject else value.tobytes()
        return [str(value.dtype), digest_bytes(content)[:16], list(value.shape)]
    if isinstance(value, Path | Enum):
        return str(value)
    if isinstance(value, partial):
        return inner([value.func, value.args, value.keywords])
    function = getattr(value, "__func__", value)
    if isinstance(function, types.FunctionType):
        return digest_bytes(*_code_parts(function.__code__))[:16]
    if hasattr(value, "__qualname__"):  # a class, or a built-in function
        return f"{value.__module__}.{value.__qualname__}"
    return [kind, inner(getattr(value, "__dict__", {}))]


def digest_code(kind: type) -> str:
    """The SHA-256 of the methods and attributes of a class and of its bases outside torch and mtkd.

    The bytecode of the methods is digested, so comments and line numbers do not matter. Functions that they
    call are not included.
    """
    contents: list[bytes | str] = []
    for base in kind.__mro__:
        if base.__module__.split(".")[0] in ("builtins", "torch", "mtkd"):
            continue
        for name, value in sorted(vars(base).items()):
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, types.FunctionType):
                contents += [name, *_code_parts(function.__code__)]
            elif isinstance(value, _RECORDED_TYPES) and not name.startswith("__"):
                contents += [name, repr(_describe(value))]
    return digest_bytes(*contents)


def _code_parts(code: types.CodeType) -> Iterator[bytes | str]:
    """The parts of compiled code that determine what it does, for a digest."""
    yield code.co_code
    yield repr((code.co_names, code.co_varnames))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_parts(constant)
        else:
            # The order of a set of strings changes from process to process.
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def require_trainable(student: nn.Module) -> None:
    """Raise UserError if the weights of the student cannot be trained."""
    if isinstance(student, ExportedModel):
        raise exported("`student` is an exported model", "trained")
    if any(weight.is_inference() for weight in student.parameters()):
        raise UserError(
            "`student` was made inside `torch.inference_mode()`, so its weights cannot be trained",
            hint="make it outside of this block",
        )
    types = {weight.dtype for weight in student.parameters() if weight.is_floating_point()} - {torch.float32}
    if types and not isinstance(student, MultiTaskModel):  # mtkd adds heads in float32
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in types))
        raise UserError(
            f"the weights of `student` are {names}",
            expected="float32; `train.precision=bf16` trains in bfloat16",
            hint="convert them: `student.float()`",
        )
    if isinstance(student, MultiTaskModel) and not any(p.requires_grad for p in student.parameters()):
        raise UserError(
            "no weight of `student` can be trained: requires_grad is False for all of them",
            hint="call student.requires_grad_(True), or pass its encoder alone to train new heads",
        )


def require_loadable(encoder: nn.Module) -> None:
    """Raise UserError if a student is not an encoder of mtkd, or if its saved weights could not be loaded."""
    if not isinstance(encoder, Encoder):
        is_transformers = type(encoder).__module__.startswith("transformers.")
        raise UserError(
            f"`student` cannot be {a_type(encoder)}",
            expected="an mtkd model, or an object whose class extends mtkd.Encoder",
            hint="to start from a transformers checkpoint: `init='NAME'` with a recipe for Transformers"
            if is_transformers
            else "docs/add-a-student.md shows how to write such a class around a module",
        )
    kind, name, config = encoder.config.kind, type(encoder).__name__, type(encoder.config).__name__
    try:
        found = encoder_class(kind)
    except UserError as error:
        raise UserError(
            f"the trained student could not be loaded: no encoder has the kind {kind!r} of this {name}",
            expected=f"a class {name} whose attribute `Config` is the class of its configuration",
            hint=f"write `Config = {config}` in {name}, and `kind: Literal[{kind!r}] = {kind!r}` in {config}",
        ) from error
    own = type(encoder)
    if (found.__module__, found.__qualname__) != (own.__module__, own.__qualname__):
        raise UserError(
            f"the trained student could not be loaded: the kind {kind!r} of this {name} belongs to "
            f"{found.__module__}.{found.__qualname__}",
            hint=f"choose another kind in the configuration of {name}",
        )


def require_valid_losses(losses: Iterable[LossTerm]) -> None:
    """Raise UserError if a loss does not initialise its base class, or declares no valid needs."""
    for loss in losses:
        kind = type(loss).__name__
        if "_parameters" not in vars(loss):
            raise UserError(f"the `__init__` of {kind} does not call `super().__init__()`")
        for name in ("student_need", "teacher_need"):
            if not isinstance(need := getattr(loss, name), OutputSpec):
                raise UserError(
                    f"`{name}` of the loss {kind} cannot be {brief(need)}",
                    expected="an OutputSpec, such as `mtkd.LOGITS` or `mtkd.OutputSpec(hidden={0, 3})`",
                )
