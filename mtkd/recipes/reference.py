"""Every setting with what is allowed and what it means, read from the settings classes themselves."""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mtkd.settings import STAGES

# What a field of this name means in any class whose docstring does not say.
_SHARED = {
    "loss": "which loss the term computes",
    "layers": "which layer of the student is compared with which of the teacher",
    "projection": "of the student's vectors to the teacher's width",
    "temperature": "divides logits before the softmax; a number, or points over the steps",
    "vector": "which vector stands for a row",
    "precision": "bf16 runs under autocast",
    "max_length": "tokens that a row is cut to, special tokens included",
    "stride": "tokens that neighbouring windows of a long context share (span tasks)",
    "head_hidden": "width of the task heads' hidden layer; 0 = a single linear layer",
    "dropout": "share of units that are dropped in the task heads while training",
    "kind": "which encoder",
    "embeddings": "how the word embeddings start",
    "vocabulary": "the teacher's word pieces, or whole words of the training text",
    "vocabulary_size": "at most so many words (vocabulary = word)",
}
_DESCRIBING = ("name", "summary", "source")  # of a recipe; nothing to set
_BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_NAMES: dict[Any, str] = {
    bool: "true | false",
    int: "integer",
    float: "number",
    str: "text",
    type(None): "none",
    Any: "anything",
}


@dataclass(frozen=True)
class SettingInfo:
    """One setting.

    Attributes:
        key: dotted, as `--set` takes it.
        value: as `--set` takes it: the value in a recipe, or the default; "" = none.
        allowed: the values that are accepted, in words.
        description: one line.
    """

    key: str
    value: str
    allowed: str
    description: str


def settings_in_use(settings: BaseModel, prefix: str = "") -> list[SettingInfo]:
    """Every setting of a recipe, with its value there."""
    found = []
    for name, field in type(settings).model_fields.items():
        key, value = f"{prefix}{name}", getattr(settings, name)
        if isinstance(value, BaseModel):
            found += settings_in_use(value, f"{key}.")
        elif isinstance(value, Mapping) and value and all(isinstance(v, BaseModel) for v in value.values()):
            for inner, item in value.items():
                found += settings_in_use(item, f"{key}.{inner}.")
        elif name not in _DESCRIBING:
            found.append(_info(type(settings), name, field, key, value))
    return found


@dataclass(frozen=True)
class Section:
    """The settings of one class, without those of the classes in it.

    Attributes:
        title: where they are set: "distill", "train", "terms.NAME, loss = relation".
        summary: the first sentence of the class's docstring.
        stages: the commands that read them.
    """

    title: str
    summary: str
    stages: tuple[str, ...]
    settings: tuple[SettingInfo, ...]


def sections() -> list[Section]:
    """All settings of all commands, each class once."""
    found: dict[tuple[str, type[BaseModel], type[BaseModel]], list[str]] = {}
    for stage, model in STAGES.items():
        for place in _classes(stage, "", model, BaseModel):
            found.setdefault(place, []).append(stage)
    written = [
        Section(title, _paragraph(part), tuple(stages), tuple(_leaves(part, base, _prefix(title))))
        for (title, part, base), stages in found.items()
    ]
    return [section for section in written if section.settings or "," in section.title]


def markdown() -> str:
    """docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Every setting of `mtkd distill`, `refine` and `finetune`: ``KEY=VALUE`` changes one line of a",
        "recipe. The defaults are those of a recipe that does not set the key; `mtkd recipes show NAME",
        "`all` prints those of a recipe. Made by `mtkd recipes settings --markdown > docs/settings.md`.",
    ]
    for section in sections():
        note = "Read by" if section.settings else "It has no settings of its own. Read by"
        lines += ["", f"## {section.title}", "", f"{section.summary} {note} {_commands(section.stages)}."]
        if section.settings:
            lines += ["", "| setting | default | allowed | meaning |", "| --- | --- | --- | --- |"]
        for s in section.settings:
            default = f"`{s.value}`" if s.value else "required"
            lines.append(f"| `{s.key}` | {default} | {_escaped(s.allowed)} | {_escaped(s.description)} |")
    return "\n".join(lines) + "\n"


def _commands(stages: Sequence[str]) -> str:
    return ", ".join(f"`mtkd {stage}`" for stage in stages)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _prefix(title: str) -> str:
    """The start of a section's keys, given its title."""
    key = title.partition(",")[0]
    return "" if key in STAGES else f"{key}."


def _classes(
    title: str, prefix: str, model: type[BaseModel], base: type[BaseModel]
) -> Iterator[tuple[str, type[BaseModel], type[BaseModel]]]:
    """Title and class of a settings class and of those in it, each with the class whose settings it repeats.

    Where there is a choice of classes, the settings that they inherit from a common one come once, first.
    """
    yield title, model, base
    for name, field in model.model_fields.items():
        inner = list(_models(field.annotation))
        key = f"{prefix}{name}.NAME" if _within(field.annotation, dict) else f"{prefix}{name}"
        if len(inner) == 1:
            yield from _classes(key, f"{key}.", inner[0], BaseModel)
        elif inner:
            common = next(c for c in inner[0].__mro__ if all(issubclass(part, c) for part in inner))
            yield key, common, BaseModel
            for part in inner:
                yield from _classes(f"{key}, {_variant(part)}", f"{key}.", part, common)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The settings classes that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for part in get_args(annotation):
        yield from _models(part)


def _within(annotation: Any, kind: type) -> bool:
    return get_origin(annotation) is kind or any(_within(part, kind) for part in get_args(annotation))


def _variant(model: type[BaseModel]) -> str:
    """What chooses this class of several: the field that allows one value only."""
    chosen = ((name, _only(field)) for name, field in model.model_fields.items())
    return next((f"{name} = {value}" for name, value in chosen if value is not None), model.__name__)


def _only(field: FieldInfo) -> Any:
    """The only value that a setting may have; None where it may have others."""
    values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return values[0] if len(values) == 1 else None


def _leaves(model: type[BaseModel], base: type[BaseModel], prefix: str) -> list[SettingInfo]:
    """The settings of a class that hold a value, but those of `base` and the one that chooses the class."""
    return [
        _info(model, name, field, prefix + name, _default(field))
        for name, field in model.model_fields.items()
        if not (name in _DESCRIBING or name in base.model_fields or list(_models(field.annotation)))
        and (base is BaseModel or _only(field) is None)
    ]


def _default(field: FieldInfo) -> Any:
    return inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True)


def _info(model: type[BaseModel], name: str, field: FieldInfo, key: str, value: Any) -> SettingInfo:
    described = field.description or _documented(model).get(name) or _SHARED.get(name, "")
    return SettingInfo(key, _written(value), _allowed(field.annotation, field.metadata), described)


def _written(value: Any) -> str:
    """A value as `--set` takes it."""
    if value is inspect.Parameter.empty:
        return ""
    return "none" if value is None else value if isinstance(value, str) else _toml(value)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


def _allowed(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """The values of a type in words; a validator's docstring, if there is one, says it better."""
    for item in metadata:
        function = getattr(item, "func", None)
        if function is not None and function.__doc__:
            return " ".join(function.__doc__.split()).rstrip(".")
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _allowed(parts[0], [*metadata, *parts[1:]])
    if origin is Literal:
        return " | ".join(map(str, parts))
    if origin in (Union, types.UnionType):
        return " | ".join(_allowed(part, metadata) for part in parts)
    if origin is list:
        return f"list of {_allowed(parts[0])}"
    if origin is tuple:
        return f"[{', '.join(map(_allowed, parts))}]"
    if origin is dict:
        return f"table of {_allowed(parts[1])}"
    bounds = [
        f"{sign} {value:g}"
        for item in metadata
        for kind, sign in _BOUNDS.items()
        if (value := getattr(item, kind, None)) is not None
    ]
    known = _NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))
    return f"{known} {', '.join(bounds)}" if bounds and annotation in (int, float) else known


def _paragraph(model: type[BaseModel]) -> str:
    """The first paragraph of a class's docstring as one line."""
    text = inspect.cleandoc(model.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split())


def _documented(model: type[BaseModel]) -> dict[str, str]:
    """Field -> description, from the Attributes sections of a class and the classes that it extends."""
    found: dict[str, str] = {}
    for part in reversed(model.__mro__):
        if not issubclass(part, BaseModel) or part is BaseModel:
            continue
        _, _, section = inspect.cleandoc(part.__doc__ or "").partition("Attributes:\n")
        for entry in re.split(r"\n(?= {4}\S)", section.split("\n\n")[0]):
            names, _, text = entry.partition(":")
            found |= dict.fromkeys(re.split(r",\s*", names.strip()), " ".join(text.split()).removesuffix("."))
    return found
