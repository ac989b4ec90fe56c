"""Arguments of public functions, checked against their type hints before the function does anything.

    @checked
    def predict(model: str | Path, *, batch: PositiveInt = 64) -> int: ...

A value of another type or out of range raises a UserError that names the argument. Types are exact: "8" is
not 8, and neither is True 1. Scalars of numpy are converted to the Python types that they stand for,
generators, arrays and views to lists, other paths to `Path`. Everything else is passed on unchanged.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any, ParamSpec, TypeVar, get_type_hints

from tasks.common.argument_checks import check_of
from tasks.common.argument_markers import HIGH_LIMIT, Expected, IsDevice, Range, described
from tasks.common.errors import UserError, a_type, brief, did_you_mean
from tasks.common.scalar_checks import Check, Unfit

P = ParamSpec("P")
R = TypeVar("R")

PositiveInt = Annotated[int, Range(1, HIGH_LIMIT)]
NonNegativeInt = Annotated[int, Range(0, HIGH_LIMIT)]
Seed = Annotated[int, Range(0, 2**53)]
Bytes = Annotated[int, Range(1, 2**63 - 1)]
MAX_THREADS = 1024
Threads = Annotated[int, Range(1, MAX_THREADS)]
ThreadsOrAll = Annotated[int, Range(0, MAX_THREADS)]  # 0 = all cores
MAX_BATCH, MAX_TOKENS, MAX_ROUNDS = 8_192, 65_536, 10_000  # of models that are timed
TimedBatch = Annotated[int, Range(1, MAX_BATCH)]
TimedTokens = Annotated[int, Range(1, MAX_TOKENS)]
Rounds = Annotated[int, Range(1, MAX_ROUNDS)]
WarmupRounds = Annotated[int, Range(0, MAX_ROUNDS)]
Device = Annotated[str, IsDevice(), Expected("cpu, cuda, cuda:N or mps")]
PositiveFloat = Annotated[float, Range(0, HIGH_LIMIT, above=True)]

Hints = dict[str, tuple[Any, Check]]  # name -> type hint, and the check made of it


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of a function in every call; raises UserError for the first that does not fit."""
    signature = inspect.signature(function)
    hints = functools.cache(lambda: hints_of(function))
    var_keyword = next((n for n, p in signature.parameters.items() if p.kind is p.VAR_KEYWORD), "")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = _bound(function.__name__, signature, args, kwargs)
        named = {name: value for name, value in bound.arguments.items() if name != var_keyword}
        bound.arguments.update(checked_values(named, hints(), signature))
        return function(*bound.args, **bound.kwargs)

    call.__dict__["checked"] = True
    return call


def suggests_fields(kind: type[R]) -> type[R]:
    """Let a dataclass suggest the field that an unknown keyword may stand for, as `checked` does."""
    signature, make = inspect.signature(kind), kind.__init__

    @functools.wraps(make)
    def init(self: R, *args: Any, **kwargs: Any) -> None:
        _bound(kind.__name__, signature, args, kwargs)
        make(self, *args, **kwargs)

    kind.__init__ = init  # type: ignore[method-assign, assignment]
    return kind


def checked_values(
    values: Mapping[str, Any], hints: Hints, signature: inspect.Signature | None = None, what: str = ""
) -> dict[str, Any]:
    """The values by name, converted where they stand for another type.

    Args:
        hints: names without a hint are not checked.
        signature: if the values are arguments, for their defaults.
        what: if they are not, the name of the object that has the values, for error messages.

    Raises:
        UserError: a value does not fit its hint.
    """
    converted = dict(values)
    for name, value in values.items():
        if name in hints:
            hint, check = hints[name]
            try:
                converted[name] = check(value)
            except Unfit as unfit:
                default = signature.parameters[name].default if signature else None
                raise _error(name, hint, unfit, default, what) from None
    return converted


def check_fields(instance: Any) -> None:
    """Check the fields of a dataclass, in its `__post_init__`; raises UserError."""
    kind: Any = type(instance)
    hints = _hints_of_fields(kind)
    values = {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}
    for name, value in checked_values(values, hints).items():
        if value is not values[name]:
            object.__setattr__(instance, name, value)


def hints_of(function: Callable[..., Any]) -> Hints:
    """The hints of the arguments of a function or class."""
    plain: Any = inspect.unwrap(function)
    parameters = inspect.signature(function).parameters
    annotations = {name: p.annotation for name, p in parameters.items() if p.annotation is not p.empty}
    namespace = getattr(plain.__init__ if inspect.isclass(plain) else plain, "__globals__", {})
    return {name: (hint, check_of(hint)) for name, hint in _resolved(annotations, namespace).items()}


def _resolved(annotations: Mapping[str, Any], namespace: dict[str, Any]) -> dict[str, Any]:
    """Annotations as hints, without those that have names which only type checkers import."""
    hints: dict[str, Any] = {}
    for name, annotation in annotations.items():
        try:
            hints |= get_type_hints(
                types.SimpleNamespace(__annotations__={name: annotation}), namespace, include_extras=True
            )
        except NameError:
            continue
    return hints


@functools.cache
def _hints_of_fields(kind: Any) -> Hints:
    hints = get_type_hints(kind, include_extras=True)
    return {name: (hint, check_of(hint)) for name, hint in hints.items()}


def _bound(
    name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments by name; raises TypeError, which suggests the argument that an unknown one may be."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        refuse_unknown(name, kwargs, signature.parameters)
        raise TypeError(f"{name}() {error}") from None


def refuse_unknown(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for a keyword that a function does not know, with the one that it may stand for."""
    known = list(known)
    for keyword in given:
        if keyword not in known:
            near = did_you_mean(keyword, known)
            raise TypeError(f"{function}() got an unexpected keyword argument {keyword!r}{near}") from None


def _error(name: str, hint: Any, unfit: Unfit, default: Any, what: str) -> UserError:
    value, quote = unfit.value, "" if what else "`"
    where = f"{what}: {name}{unfit.place}" if what else f"`{name}{unfit.place}"
    shown = str(value) if isinstance(value, PurePath) else value
    if unfit.is_key:
        problem = f"{where}{quote} has the key {brief(shown)}"
    elif value is None or isinstance(value, str | bytes | PurePath | bool | numbers.Number):
        near = did_you_mean(value, unfit.choices) if isinstance(value, str) else ""
        problem = f"{where}={brief(shown)}{quote} is not valid{near}"
    else:
        kind = f"the class {value.__name__}" if isinstance(value, type) else a_type(value)
        problem = f"{where}{quote} cannot be {kind}"
    remedy = unfit.hint or _remedy(value, None if unfit.place else default)
    return UserError(problem, expected=unfit.expected or described(hint), hint=remedy)


def _remedy(value: Any, default: Any) -> str | None:
    """What to write instead of a frequent mistake."""
    if value is None and default is not None and default is not inspect.Parameter.empty:
        return f"leave it out for the default, {brief(default)}"
    if isinstance(value, type):
        return f"pass an object: {value.__name__}(...)"
    return None
