"""Classes that installed packages register under an entry point group."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from tasks.common.errors import MtkdWarning, UserError

Base = TypeVar("Base")


def load_plugin(group: str, name: str, base: type[Base] = object) -> type[Base] | None:  # type: ignore[assignment]
    """Import the class that an installed package registers under a name; None if there is none.

    A package registers a class in its `pyproject.toml`:

        [project.entry-points."mtkd.losses"]
        my_loss = "my_package.my_module:MyLoss"

    Importing a plugin runs its code, so call this only when it is needed, and cache the result.

    Args:
        group: the entry point group, such as "mtkd.losses".
        base: the class that the plugin must be a subclass of.

    Raises:
        UserError: two packages register the name, or the plugin cannot be imported or is not a subclass of
            `base`. The message names the plugin and its package.
    """
    entries = list(entry_points(group=group, name=name))
    if len(entries) > 1:
        raise UserError(
            f"{_describe(entries[1])}: the name {name!r} is already taken",
            hint="rename the entry point, or uninstall the package",
        )
    return _load(entries[0], base) if entries else None


def load_plugins(group: str, known: Mapping[str, Any], base: type[Base] = object) -> dict[str, type[Base]]:  # type: ignore[assignment]
    """Import all classes that installed packages register under a group, in alphabetical order.

    A plugin that cannot be used is left out with a warning, so that it does not disable the others.

    Args:
        known: the names that are already taken.
    """
    plugins: dict[str, type[Base]] = {}
    for name in sorted({entry.name for entry in entry_points(group=group)}):
        if name in known:
            (entry, *_) = entry_points(group=group, name=name)
            _warn(f"{_describe(entry)} is not used: the name {name!r} is already taken")
            continue
        try:
            plugin = load_plugin(group, name, base)
        except UserError as error:
            _warn(error.problem)
            continue
        assert plugin is not None, "it is registered"
        plugins[name] = plugin
    return plugins


def _warn(text: str) -> None:
    warnings.warn(text, MtkdWarning, stacklevel=3)


def _load(entry: EntryPoint, base: type[Base]) -> type[Base]:
    try:
        loaded = entry.load()
    except Exception as error:  # a plugin's own code may raise anything
        raise UserError(
            f"{_describe(entry)} cannot be loaded: {type(error).__name__}: {error}",
            hint="repair, upgrade or uninstall the package",
        ) from error
    if not isinstance(loaded, type) or not issubclass(loaded, base):
        raise UserError(
            f"{_describe(entry)} is not a subclass of {base.__name__}: {loaded!r}",
            hint="repair, upgrade or uninstall the package",
        )
    if missing := getattr(loaded, "__abstractmethods__", None):
        raise UserError(
            f"{_describe(entry)} lacks the {base.__name__} method {', '.join(sorted(missing))}",
            hint="repair, upgrade or uninstall the package",
        )
    return loaded


def _describe(entry: EntryPoint) -> str:
    package = f" of the package {entry.dist.name}" if entry.dist else ""
    return f"the plugin {entry.name} = {entry.value}{package} (entry point group {entry.group})"
