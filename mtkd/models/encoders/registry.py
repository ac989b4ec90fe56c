"""The encoders by kind: one line for each, and those that installed packages bring.

A package brings a student with an entry point of the group `mtkd.students`; its settings are the table
`student.<kind>` of a recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

from mtkd.models.encoders.base import AnyEncoder, Encoder, EncoderConfig, StudentSettings
from mtkd.models.init import InitContext, InitSpec
from tasks.errors import unknown
from tasks.plugins import load_plugins

# Read as an entry point is, so that an encoder's file is imported only when its kind is used.
ENCODERS = {
    "bilstm": "mtkd.models.encoders.bilstm:BiLSTMEncoder",
    "bilstm-biattention": "mtkd.models.encoders.bilstm:BiLSTMEncoder",
    "static": "mtkd.models.encoders.static:StaticEncoder",
    "transformer": "mtkd.models.encoders.transformer:TransformerEncoder",
    "waldorf": "mtkd.models.encoders.waldorf:WaldorfEncoder",
}
DEFAULT_KIND = "bilstm-biattention"
GROUP = "mtkd.students"


def encoder_classes() -> dict[str, type[AnyEncoder]]:
    """The encoders by kind, those of installed packages included.

    Raises:
        UserError: a package's entry point cannot be loaded, or is not an Encoder.
    """
    found: dict[str, type[AnyEncoder]] = {
        kind: EntryPoint(kind, place, GROUP).load() for kind, place in ENCODERS.items()
    }
    return found | load_plugins(GROUP, ENCODERS, Encoder)  # type: ignore[type-abstract]


def encoder_class(kind: str) -> type[AnyEncoder]:
    """The encoder of a kind.

    Raises:
        UserError: there is none of that name.
    """
    if kind in ENCODERS:
        known: type[AnyEncoder] = EntryPoint(kind, ENCODERS[kind], GROUP).load()
        return known
    found = encoder_classes()
    if kind not in found:
        raise unknown("kind of student (student.kind)", kind, found)
    return found[kind]


def settings_class(student: Any) -> type[StudentSettings]:
    """The settings that the `[student]` table of a recipe has, by its `kind`."""
    kind = student.get("kind", DEFAULT_KIND) if isinstance(student, Mapping) else DEFAULT_KIND
    return encoder_class(str(kind)).Settings


def student_settings(values: Any) -> Any:
    """The `[student]` table of a recipe as the settings of its kind.

    Tables of other kinds may stand in it, so that `student.kind` alone can be changed; they are left out.

    Raises:
        UserError: an unknown kind.
        pydantic.ValidationError: an unknown key, or a value that is not allowed.
    """
    if not isinstance(values, Mapping):
        return values
    chosen = settings_class(values)
    if not values.keys() <= chosen.model_fields.keys():
        every = {name for encoder in encoder_classes().values() for name in encoder.Settings.model_fields}
        others = every - chosen.model_fields.keys()
        values = {name: value for name, value in values.items() if name not in others}
    return chosen.model_validate({"kind": DEFAULT_KIND, **values})


def student_config(settings: StudentSettings, init_spec: InitSpec) -> EncoderConfig:
    """What the student will be, before any weights are loaded; the vocabulary may still be unknown.

    Raises:
        UserError: sizes that do not go together, or not with what the student starts from.
    """
    config: EncoderConfig = encoder_class(settings.kind).config_from_settings(settings, init_spec, 1)
    return config


def build_student(settings: StudentSettings, context: InitContext) -> AnyEncoder:
    """The student's encoder with its first weights; the caller seeds torch.

    Raises:
        UserError: embeddings or layers are wanted that the teacher cannot give.
    """
    return encoder_class(settings.kind).build(settings, context)


def config_from_json(value: Mapping[str, Any]) -> EncoderConfig:
    """The configuration that was saved as `value`."""
    return encoder_class(value["kind"]).Config.model_validate(value)


def encoder_from_config(config: EncoderConfig) -> AnyEncoder:
    """An encoder with fresh weights."""
    return encoder_class(config.kind)(config)
