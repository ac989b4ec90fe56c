"""Builds functions that check values against type hints, for `tasks.common.arguments`."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable, Iterable, Mapping, MappingView, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from tasks.common.argument_markers import Expected, IsPath, find_marker
from tasks.common.errors import brief
from tasks.common.scalar_checks import SCALARS, Check, Unfit


class _LazyClass(type):
    """Stands for a class of a module; no value is an instance of it before that module is imported."""

    module: str

    def __instancecheck__(cls, value: Any) -> bool:
        kind = getattr(sys.modules.get(cls.module), cls.__name__, None)
        return kind is not None and isinstance(value, kind)


def lazy_class(module: str, name: str) -> Any:
    """A class of a module that is slow to import, for hints that are evaluated at run time."""
    return _LazyClass(name, (), {"module": module})


def check_of(hint: Any, metadata: Sequence[Any] = ()) -> Check:
    """Build the function that checks values of a type hint; `metadata`: its markers, such as `Range`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return check_of(arguments[0], (*hint.__metadata__, *metadata))
    if hint is Any or isinstance(hint, TypeVar):
        return lambda value: value
    check = _check_of_generic(origin, arguments, metadata)
    if check is None:
        check = SCALARS[hint](metadata) if hint in SCALARS else _instance(origin or hint)
    words = find_marker(Expected, metadata)
    return _with_hint(check, words.hint) if words and words.hint else check


def _check_of_generic(origin: Any, arguments: Sequence[Any], metadata: Sequence[Any]) -> Check | None:
    if origin in (Union, types.UnionType):
        return _union(arguments, metadata)
    if origin is Literal:
        return _literal(arguments)
    if origin is tuple:
        return _tuple(arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(arguments)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _sequence(check_of(arguments[0]))
    return None


def _with_hint(check: Check, hint: str) -> Check:
    def with_hint(value: Any) -> Any:
        try:
            return check(value)
        except Unfit as unfit:
            unfit.hint = unfit.hint or hint
            raise

    return with_hint


def _union(options: Sequence[Any], metadata: Sequence[Any]) -> Check:
    marks = (*metadata, IsPath()) if Path in options else metadata
    checks = [
        check_of(option, [item for item in marks if not isinstance(item, Expected)]) for option in options
    ]

    def check(value: Any) -> Any:
        failures = []
        for option in checks:
            try:
                return option(value)
            except Unfit as unfit:
                failures.append(unfit)
        raise max(failures, key=lambda unfit: (len(unfit.place), bool(unfit.expected), bool(unfit.hint)))

    return check


def _literal(choices: Sequence[Any]) -> Check:
    def check(value: Any) -> Any:
        if isinstance(value, str) and value in choices:
            return str(value)
        raise Unfit(value, choices=[str(choice) for choice in choices])

    return check


def _mapping(arguments: Sequence[Any]) -> Check:
    check_key, check_item = map(check_of, arguments)

    def key_of(key: Any) -> Any:
        try:
            return check_key(key)
        except Unfit as unfit:
            unfit.is_key = True
            raise

    def check(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Unfit(value)
        found = {}
        for key, item in value.items():
            try:
                found[key_of(key)] = check_item(item)
            except Unfit as unfit:
                raise (unfit if unfit.is_key else unfit.inside(key)) from None
        return value if all(found.get(key) is item for key, item in value.items()) else found

    return check


def _sequence(check_item: Check) -> Check:
    def check(value: Any) -> Any:
        try:
            items = _items(value)
        except Unfit as unfit:
            unfit.hint = _hint_for_one(check_item, value)
            raise
        found = _each(itertools.repeat(check_item), items)
        if isinstance(value, Sequence) and _same(found, items):
            return value
        return tuple(found) if isinstance(value, tuple) else found

    return check


def _hint_for_one(check_item: Check, value: Any) -> str | None:
    """How to pass a value that is given alone, not in a list; None if the list could not hold it."""
    try:
        check_item(value)
    except Unfit:
        return None
    shown = str(value) if isinstance(value, PurePath) else value
    return f"for one value: [{brief(shown)}]" if isinstance(shown, str | int) else "for one value: [value]"


def _tuple(arguments: Sequence[Any]) -> Check:
    if len(arguments) == 2 and arguments[1] is ...:
        check_all = _sequence(check_of(arguments[0]))
        return lambda value: tuple(check_all(value))
    checks = [check_of(argument) for argument in arguments]

    def check(value: Any) -> Any:
        items = _items(value)
        if len(items) != len(checks):
            raise Unfit(value)
        found = _each(checks, items)
        return value if isinstance(value, tuple) and _same(found, items) else tuple(found)

    return check


_LISTED: Any = (MappingView, types.GeneratorType, map, zip, filter)  # types that are also accepted as lists


def _items(value: Any) -> list[Any]:
    """The items of a list, or of what can stand for one; raises Unfit for anything else."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return list(value)
    if isinstance(value, _LISTED):
        return list(value)
    if getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):  # an array or a Series
        return list(value.tolist())
    raise Unfit(value)


def _each(checks: Iterable[Check], items: Iterable[Any]) -> list[Any]:
    found = []
    for number, (check, item) in enumerate(zip(checks, items, strict=False)):
        try:
            found.append(check(item))
        except Unfit as unfit:
            raise unfit.inside(number) from None
    return found


def _same(found: Sequence[Any], items: Sequence[Any]) -> bool:
    return all(one is other for one, other in zip(found, items, strict=True))


def _instance(kind: Any) -> Check:
    wanted = Callable if kind is Callable else kind if isinstance(kind, type) else object

    def check(value: Any) -> Any:
        if isinstance(value, wanted):
            return value
        raise Unfit(value)

    return check
