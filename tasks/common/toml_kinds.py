"""The kinds of TOML files that users write, told apart for the error about a file of another kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.common.errors import UserError

# Kind -> a key that only files of this kind have, the type of its value, and what takes such a file.
_KINDS: dict[str, tuple[str, type, str]] = {
    "grid": ("cells", dict, "`mtkd.compare('FILE', ...)` runs it"),
    "pipeline": ("steps", dict, "`mtkd.run_pipeline('FILE')` runs it"),
    "task file": ("columns", list, "pass it as `tasks='FILE'`"),
    "recipe": ("command", str, "`mtkd.distill`, `mtkd.refine` and `mtkd.finetune` take a recipe"),
}


def refuse_other_kind(file: Path | str, values: Mapping[str, Any], wanted: str) -> None:
    """Raise UserError if the values of a TOML file are those of another kind of file than the wanted one.

    Args:
        wanted: "grid", "pipeline", "task file" or "recipe".
    """
    kinds = [kind for kind, (key, form, _) in _KINDS.items() if isinstance(values.get(key), form)]
    if kinds and wanted not in kinds:
        hint = _KINDS[kinds[0]][2].replace("FILE", str(file))
        raise UserError(f"{file} is a {kinds[0]}, not a {wanted}", hint=hint)
