"""All encoders by kind: those of mtkd, one line each, of installed packages, and defined in this process.

A package adds a kind of student with an entry point in the group `mtkd.students`; the settings of that
student are the table `student.<kind>` of a recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from typing import Any, get_args

from mtkd.models.encoders.encoder import AnyEncoder, Encoder, EncoderConfig, StudentSettings
from mtkd.models.initialisation import InitContext, InitSpec
from tasks.common.errors import UserError, unknown
from tasks.common.plugins import load_plugin, load_plugins
from tasks.common.records import check_record

# Loaded like entry points, so that the file of an encoder is imported only when its kind is used.
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
    """All encoders by kind, including those of installed packages."""
    built_in: dict[str, type[AnyEncoder]] = {
        kind: EntryPoint(kind, location, GROUP).load() for kind, location in ENCODERS.items()
    }
    return built_in | load_plugins(GROUP, ENCODERS, Encoder)  # type: ignore[type-abstract]


def encoder_class(kind: str, hint: str | None = None) -> type[AnyEncoder]:
    """The encoder class of a kind.

    Raises:
        UserError: there is no such kind, or the package that adds it cannot be used.
    """
    if kind in ENCODERS:
        built_in: type[AnyEncoder] = EntryPoint(kind, ENCODERS[kind], GROUP).load()
        return built_in
    plugin: type[AnyEncoder] | None = load_plugin(GROUP, kind, Encoder)  # type: ignore[type-abstract]
    found = plugin or _defined_class(kind)
    if found is None:
        raise unknown("kind of student (student.kind)", kind, encoder_classes(), hint=hint)
    if plugin is not None:
        _require_kind(plugin, kind)
    return found


def is_defined_here(kind: str) -> bool:
    """True for a kind that only this process knows, since its class is defined in a notebook or script."""
    if kind in ENCODERS or load_plugin(GROUP, kind, Encoder) is not None:  # type: ignore[type-abstract]
        return False
    return _defined_class(kind) is not None


def _defined_class(kind: str) -> type[AnyEncoder] | None:
    """The last encoder class of a kind that this process has defined, such as in a notebook."""
    for cls in reversed(list(_subclasses(Encoder))):  # type: ignore[type-abstract]
        config = vars(cls).get("Config")
        if config is not None and config.model_fields["kind"].default == kind:
            return cls
    return None


def _subclasses(cls: type[AnyEncoder]) -> Iterator[type[AnyEncoder]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _require_kind(plugin: type[AnyEncoder], kind: str) -> None:
    """Raise UserError if a plugin declares another kind than the name of its entry point."""
    for part in (plugin.Settings, plugin.Config):
        declared = get_args(part.model_fields["kind"].annotation)
        if declared and kind not in declared:
            raise UserError(
                f"the plugin {kind!r} ({plugin.__module__}:{plugin.__qualname__}) declares the kind "
                f"{', '.join(map(repr, declared))} in {part.__name__}",
                expected=f"{kind!r}, the name of its entry point in the group {GROUP}",
                hint=f"write `kind: Literal[{kind!r}] = {kind!r}` there, or rename the entry point",
            )


def settings_class(student: Any) -> type[StudentSettings]:
    """The settings class for the `[student]` table of a recipe, chosen by its `kind`."""
    kind = student.get("kind", DEFAULT_KIND) if isinstance(student, Mapping) else DEFAULT_KIND
    return encoder_class(str(kind)).Settings


def student_settings(values: Any) -> Any:
    """Validate the `[student]` table of a recipe with the settings class of its kind.

    The table may contain the tables of other kinds, so that `student.kind` can be changed alone; they are
    ignored.

    Raises:
        UserError: the kind is unknown.
        pydantic.ValidationError: a key is unknown, or a value is not allowed.
    """
    if not isinstance(values, Mapping):
        return values
    settings = settings_class(values)
    if not values.keys() <= settings.model_fields.keys():
        all_keys = {name for encoder in encoder_classes().values() for name in encoder.Settings.model_fields}
        keys_of_others = all_keys - settings.model_fields.keys()
        values = {name: value for name, value in values.items() if name not in keys_of_others}
    return settings.model_validate({"kind": DEFAULT_KIND, **values})


def student_config(settings: StudentSettings, init_spec: InitSpec) -> EncoderConfig:
    """The student's configuration before any weights are loaded, while its vocabulary may still be unknown.

    Raises:
        UserError: the sizes do not fit together, or do not fit the encoder that the student starts from.
    """
    config: EncoderConfig = encoder_class(settings.kind).config_from_settings(settings, init_spec, 1)
    return config


def build_student(settings: StudentSettings, context: InitContext) -> AnyEncoder:
    """Build the student's encoder with its initial weights; the caller seeds torch.

    Raises:
        UserError: the settings require embeddings or layers that the teacher cannot provide.
    """
    return encoder_class(settings.kind).build(settings, context)


def config_from_json(value: Mapping[str, Any], where: str) -> EncoderConfig:
    """Restore a configuration from its JSON form.

    Args:
        where: the file and key, for error messages.

    Raises:
        UserError: the kind of encoder is missing or unknown, or a value is not allowed.
    """
    kind = value.get("kind")
    if not isinstance(kind, str):
        raise UserError(f"{where} has no key 'kind'", expected=", ".join(ENCODERS))
    hint = (
        f"install the package that provides the student {kind!r}, or import the module that defines it "
        "(docs/add-a-student.md)"
    )
    return check_record(value, encoder_class(kind, hint).Config, where)


def encoder_from_config(config: EncoderConfig) -> AnyEncoder:
    """Build an encoder with newly initialised weights."""
    return encoder_class(config.kind)(config)
