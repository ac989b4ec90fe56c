"""Recipes: one TOML file each, containing only settings, which `--set` can override."""

from mtkd.recipes.loading import (
    assign_setting,
    dotted,
    load_settings,
    recipe_command,
    recipe_files,
    recipe_names,
    recipe_summary,
    recipe_text,
    refuse_contradiction,
    stays_whole,
)
from mtkd.recipes.set_options import parse_set

__all__ = [
    "assign_setting",
    "dotted",
    "load_settings",
    "parse_set",
    "recipe_command",
    "recipe_files",
    "recipe_names",
    "recipe_summary",
    "recipe_text",
    "refuse_contradiction",
    "stays_whole",
]
