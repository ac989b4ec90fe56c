"""`mtkd tasks`, `mtkd recipes`, `mtkd recipes show`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

import mtkd
from mtkd.cli.options import json_option, show, table

if TYPE_CHECKING:
    from mtkd.recipes.settings_reference import SettingInfo

_WIDTH = 100  # characters per line of settings


@click.command()
@json_option
def tasks(json_file: str | None) -> None:
    """List the built-in tasks and the names of groups of tasks."""
    from tasks.glue import TASKS
    from tasks.task_names import GROUPS

    def draw() -> None:
        rows = [
            (
                t.name,
                t.kind,
                " + ".join(t.columns),
                ", ".join(t.labels) or _range(t.range),
                ", ".join(t.metrics),
            )
            for t in TASKS.values()
        ]
        table(("task", "kind", "reads", "labels", "metrics"), rows)
        groups = [(name, ", ".join(members)) for name, members in GROUPS.items()]
        table(("group", "tasks"), groups, "Groups of tasks")
        print(
            "A task of your own is a TOML file; give its path wherever a task is named (docs/add-a-task.md)."
        )

    show({"tasks": [t.to_json() for t in TASKS.values()], "groups": GROUPS}, json_file, draw)


def _range(bounds: tuple[float, float] | None) -> str:
    return f"{bounds[0]:g} to {bounds[1]:g}" if bounds else "-"


@click.group(invoke_without_command=True)
@click.pass_context
@json_option
def recipes(ctx: click.Context, json_file: str | None) -> None:
    """List the recipes; `mtkd recipes show NAME` prints one."""
    if ctx.invoked_subcommand:
        return
    from mtkd.recipes import load_settings, recipe_names, recipe_summary
    from mtkd.settings import SETTINGS_OF_COMMAND

    named_recipes = [(name, command) for command in SETTINGS_OF_COMMAND for name in recipe_names(command)]

    def draw() -> None:
        table(
            ("recipe", "command", "summary"), [(n, f"mtkd {c}", recipe_summary(n)) for n, c in named_recipes]
        )

    # Loading settings imports torch for the losses, which takes seconds.
    every = [
        {"name": n, "command": c, **load_settings(n, c, {}).model_dump()}
        for n, c in named_recipes
        if json_file
    ]
    show(every, json_file, draw)


@recipes.command("show")
@click.argument("name")
@click.option(
    "--all", "complete", is_flag=True, help="every setting: its value, what is allowed and what it means"
)
@json_option
def show_recipe(name: str, complete: bool, json_file: str | None) -> None:
    """Print a recipe. Every line of it can be changed with --set."""
    from mtkd.recipes import recipe_files, recipe_text
    from mtkd.recipes.settings_reference import settings_in_use

    text = recipe_text(name)
    # Loading settings imports torch for the losses, which takes seconds; the built-in recipes are valid.
    settings = mtkd.show_recipe(name) if complete or json_file or recipe_files(name) else None

    def draw() -> None:
        if settings is None or not complete:
            print(text, end="")
        else:
            _draw_settings(settings_in_use(settings))

    show(settings and settings.model_dump(), json_file, draw)


@recipes.command("settings", hidden=True)
@click.option("--markdown", "as_markdown", is_flag=True, help="as the page docs/settings.md")
def all_settings(as_markdown: bool) -> None:
    """Print every setting of every command: its default, what is allowed and what it means."""
    from mtkd.recipes.settings_reference import markdown, sections

    if as_markdown:
        print(markdown(), end="")
        return
    for section in sections():
        _draw_settings(section.settings, f"{section.title}: {section.summary}")


def _draw_settings(settings: Sequence[SettingInfo], title: str | None = None) -> None:
    """Print each setting as `key = value  (what is allowed)` and, below, its meaning; at most 100 wide."""
    if title:
        print(f"{title}\n")
    for s in settings:
        line = f"{s.key} = {s.value}  ({s.allowed})" if s.value else f"{s.key}  ({s.allowed})"
        print(textwrap.fill(line, _WIDTH, subsequent_indent="    ", break_on_hyphens=False))
        print(textwrap.fill(s.description, _WIDTH, initial_indent="    ", subsequent_indent="    "))
    print()
