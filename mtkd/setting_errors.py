"""Validation of settings: the error names the key, its value and what is allowed."""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping
from typing import Annotated, Any, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from mtkd.losses.allowed_values import allowed_values
from mtkd.losses.loss_registry import loss_classes
from mtkd.losses.term_settings import TermSettings, find_settings
from mtkd.models.encoders.encoder_registry import settings_class
from mtkd.strict_settings import OTHER_TYPE, StrictSettings
from tasks.common.errors import UserError, brief, did_you_mean, hint_for_quoted, shorten, unknown
from tasks.common.records import in_words

_UNION_PARTS = ("bool", "float", "str", "int", "constrained-int", "constrained-float")
_SETTING_SYNONYMS = {"learning_rate": "lr", "batch": "batch_size"}  # name in other libraries -> name here
_REFERENCE = "`mtkd.show_recipe('NAME')` lists all settings"
_DESCRIPTIONS = ("name", "summary", "source")  # keys of a recipe that are not settings


def validate(
    model: type[StrictSettings],
    values: Mapping[str, Any],
    reference: str = _REFERENCE,
    examples: Mapping[str, str] | None = None,
) -> Any:
    """Build settings from plain values.

    Args:
        reference: the hint for an unknown key, which says where all keys are listed.
        examples: key -> the hint if it is missing or its value is invalid.

    Raises:
        UserError: a key or value is invalid; the message names the first such key, its value and what is
            allowed.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _explain(model, values, error, reference, examples or {}) from error


def _explain(
    model: type[BaseModel],
    values: Mapping[str, Any],
    error: ValidationError,
    reference: str,
    examples: Mapping[str, str],
) -> UserError:
    """The error about the first invalid key of some settings."""
    errors = error.errors()
    # A term without a loss is a misspelt name, whatever else is wrong with it.
    first_error = next((e for e in errors if e["type"] == "missing" and e["loc"][2:] == ("loss",)), errors[0])
    if first_error["loc"][-1:] == ("[key]",):
        where, name = first_error["loc"][0], first_error["input"]
        expected = first_error.get("ctx", {}).get("error") or "letters, digits, _ and -"
        return UserError(f"{brief(name)} is not a valid name in {where}", expected=str(expected))
    # For a setting with several allowed types, the location also contains the type ("float", "list[...]").
    path = [str(p) for p in first_error["loc"] if p not in _UNION_PARTS and "[" not in str(p)]
    key = ".".join(path)
    if first_error["type"] == "extra_forbidden":
        return _unknown_setting(model, values, path, first_error.get("input"), reference)
    if first_error["type"] == "missing" and path[0] == "terms" and path[2:] == ["loss"]:
        known_names = [name for name, term in values["terms"].items() if find_settings(term)]
        return unknown("term", path[1], known_names, hint=f"a new term needs `{key}=...`")
    if first_error["type"] == "missing":
        return UserError(f"the setting {key!r} is missing", hint=examples.get(key, f"add {key} to the file"))
    if first_error["type"] == "unknown_loss":
        return unknown(f"loss of {key}", first_error["input"]["loss"], loss_classes())
    if path[0] == "terms" and path[2:] == ["loss"]:
        expected = f"the name of a loss: {shorten(loss_classes())}"
        return UserError(f"{key} = {brief(first_error['input'])} is not valid", expected=expected)
    if first_error["type"] in ("value_error", "assertion_error") or "error" in first_error.get("ctx", {}):
        expected = str(first_error["ctx"].get("error", first_error["msg"]))
    else:
        names = [name for name in path if not name.isdigit()]
        expected = _expected(model, values, names) or in_words(first_error)
        if first_error["type"] == "model_type":  # pydantic names the class
            example = f", such as {key}.weight" if path[0] == "terms" else ""
            expected = f"a table of settings{example}"
        if first_error["type"] == "too_short":
            expected += ", with at least one entry"
    problem = f"{key} = {brief(first_error.get('input'))} is not valid"
    return UserError(problem, expected=expected, hint=examples.get(key) or _hint_without_quotes(first_error))


def _hint_without_quotes(error: Mapping[str, Any]) -> str | None:
    """The hint for a number, or for true or false, that is written as text; None for other errors."""
    if error["type"] != OTHER_TYPE or not isinstance(error["input"], str):
        return None
    is_flag = "true or false" in error["msg"]
    return "write true or false, without quotes" if is_flag else hint_for_quoted(error["input"])


def _unknown_setting(
    model: type[BaseModel], values: Mapping[str, Any], path: list[str], value: Any, reference: str
) -> UserError:
    """The error for a setting that does not exist, with similar ones that do.

    Args:
        path: the parts of the key.
        value: the value that it was set to.
        reference: see `validate`.
    """
    key, section = ".".join(path), ".".join(path[:-1])
    usual = _SETTING_SYNONYMS.get(path[-1], path[-1])
    if path[0] == "terms" and len(path) == 3:
        fields = _term_model(values, path[1]).model_fields
        return unknown("setting", key, [f"{section}.{field}" for field in fields])
    known_names = [name for name in _keys(model, values) if name not in _DESCRIPTIONS]
    if whole_key := _misspelt_table(path, value, known_names):
        key, nearest = whole_key
        section = nearest.rpartition(".")[0]
        siblings = [name for name in known_names if name.rpartition(".")[0] == section]
        return unknown("setting", key, siblings, hint=reference)
    beside = [name for name in known_names if name.startswith(f"{section}.")] if section else known_names
    table_model = None if beside else _model_of_table(model, values, path[:-1])
    if _is_model(table_model):  # such as the table of a cell, whose name is not fixed
        keys = list(table_model.model_fields)
        problem = f"unknown setting {key!r}{did_you_mean(path[-1], keys)}"
        return UserError(problem, expected=", ".join(keys), hint=reference)
    near = beside if difflib.get_close_matches(key, beside, n=1, cutoff=0.5) else known_names
    near = [name for name in beside if name.rsplit(".", 1)[-1] == usual] or near
    return unknown("setting", key, near, hint=reference)


def _term_model(values: Mapping[str, Any], name: str) -> type[BaseModel]:
    """The settings class of a term's loss; the base class if the term names no loss."""
    return find_settings(values["terms"][name]) or TermSettings


def _misspelt_table(path: list[str], value: Any, known_names: list[str]) -> tuple[str, str] | None:
    """The full key of a setting in an unknown table, and the most similar known key; None if none is similar.

    For `trian.epochs`, pydantic reports only `trian`, but `epochs` tells which table is meant.
    """
    end: list[str] = []
    while isinstance(value, Mapping) and value:
        name, value = next(iter(value.items()))
        end.append(str(name))
    if not end:
        return None
    key = ".".join([*path, *end])
    same_end = [name for name in known_names if name.split(".")[len(path) :] == end]
    near = difflib.get_close_matches(key, same_end or known_names, n=1, cutoff=0.6)
    return (key, near[0]) if near else None


def _expected(model: type[BaseModel], values: Mapping[str, Any], where: list[str]) -> str | None:
    """The allowed values of the setting at a location, in words; None inside a table without fixed keys."""
    *path, last = where
    settings_model = _model_of_table(model, values, path)
    field = settings_model.model_fields.get(last) if _is_model(settings_model) else None
    return allowed_values(field.annotation, field.metadata) if field else None


def _model_of_table(model: type[BaseModel], values: Mapping[str, Any], path: list[str]) -> Any:
    """The settings model of a table; another type or None inside a table without fixed keys."""
    settings_model: Any = model
    table: Any = values
    for name in path:
        table = table.get(name) if isinstance(table, Mapping) else None
        if get_origin(settings_model) is dict:  # a table of tables, such as `cells`, by their names
            settings_model = get_args(settings_model)[1]
            if not _is_model(settings_model):
                return None
            continue
        if path[0] == "terms":
            return _term_model(values, path[1]) if len(path) == 2 else None
        if name == "student":
            settings_model = settings_class(table)
        else:
            settings_model = _without_none(getattr(settings_model.model_fields.get(name), "annotation", None))
        if not (get_origin(settings_model) is dict or _is_model(settings_model)):
            return None
    return settings_model


def _without_none(annotation: Any) -> Any:
    """The settings model in an annotation such as `Model | None`; any other annotation unchanged."""
    options = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()
    plain = [get_args(option)[0] if get_origin(option) is Annotated else option for option in options]
    return next(filter(_is_model, plain), annotation)


def _is_model(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _keys(model: type[BaseModel], values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every dotted key of a settings model; the keys of `student` depend on its kind in `values`."""
    keys: list[str] = []
    for name, item in model.model_fields.items():
        inner = settings_class(values.get(name)) if name == "student" else item.annotation
        if _is_model(inner):
            keys += _keys(inner, {}, f"{prefix}{name}.")
        elif name == "terms":
            keys += [f"terms.NAME.{field}" for field in _term_keys()]
        elif name == "stages":
            train: Any = model.model_fields["train"].annotation
            keys += ["stages.NAME.terms", *(f"stages.NAME.train.{key}" for key in train.model_fields)]
        else:
            keys.append(prefix + name)
    return keys


def _term_keys() -> list[str]:
    """The names of the settings of all losses."""
    return list(dict.fromkeys(key for loss in loss_classes().values() for key in loss.Settings.model_fields))
