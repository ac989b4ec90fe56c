"""Classes that installed packages register under an entry point group."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from tasks.errors import UserError

Base = TypeVar("Base")


def load_plugins(group: str, known: Mapping[str, Any], base: type[Base] = object) -> dict[str, type[Base]]:  # type: ignore[assignment]
    """Import the classes that installed packages register under a group, in alphabetical order.

    A package registers a class in its `pyproject.toml`:

        [project.entry-points."mtkd.losses"]
        my_loss = "my_package.my_module:MyLoss"

    Importing a plugin runs its code, so call this only when a plugin may be needed, and cache the result.

    Args:
        group: the entry point group, such as "mtkd.losses".
        known: the names that are already taken.
        base: the class that every plugin must be a subclass of.

    Raises:
        UserError: a name is already taken, or a plugin cannot be imported or is not a subclass of `base`. The
            message names the plugin and its package.
    """
    found: dict[str, type[Base]] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        if entry.name in known or entry.name in found:
            raise UserError(
                f"{_describe(entry)}: the name {entry.name!r} is already taken",
                hint="rename the entry point, or uninstall the package",
            )
        found[entry.name] = _load(entry, base)
    return found


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
    return loaded


def _describe(entry: EntryPoint) -> str:
    package = f" of the package {entry.dist.name}" if entry.dist else ""
    return f"the plugin {entry.name} = {entry.value}{package} (entry point group {entry.group})"
