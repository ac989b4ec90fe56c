"""Recipes: one TOML file each, containing only settings, which `--set` can override."""

from mtkd.recipes.loading import (
    assign_setting,
    dotted,
    load_settings,
    parse_set,
    recipe_command,
    recipe_files,
    recipe_names,
    recipe_summary,
    recipe_text,
    refuse_contradiction,
    stays_whole,
)

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
