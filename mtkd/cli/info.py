"""`mtkd tasks`, `mtkd recipes`, `mtkd recipes show`."""

from __future__ import annotations

import click

from mtkd.cli.options import json_option, show, table


@click.command()
@json_option
def tasks(json_file: str | None) -> None:
    """The tasks there are, and the names for several at once."""
    from tasks.glue import TASKS
    from tasks.registry import GROUPS

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
        table(("group", "tasks"), [(name, ", ".join(members)) for name, members in GROUPS.items()])
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
    """The recipes there are; `mtkd recipes show NAME` prints one."""
    if ctx.invoked_subcommand:
        return
    from mtkd.recipes import load_settings, recipe_names, recipe_summary
    from mtkd.settings import STAGES

    found = [(name, stage) for stage in STAGES for name in recipe_names(stage)]

    def draw() -> None:
        table(("recipe", "for", "what it is"), [(n, f"mtkd {s}", recipe_summary(n)) for n, s in found])

    # Loading settings imports torch for the losses, which takes seconds.
    every = [{"name": n, "stage": s, **load_settings(n, s, {}).model_dump()} for n, s in found if json_file]
    show(every, json_file, draw)


@recipes.command("show")
@click.argument("name")
@click.option("--all", "complete", is_flag=True, help="every setting with its value, defaults included")
@json_option
def show_recipe(name: str, complete: bool, json_file: str | None) -> None:
    """Print a recipe: every line can be changed with --set."""
    from mtkd.recipes import load_settings, recipe_stage, recipe_text

    text, stage = recipe_text(name), recipe_stage(name)
    settings = load_settings(name, stage, {}).model_dump() if complete or json_file else {}

    def draw() -> None:
        if not complete:
            print(text, end="")
            return
        for key, value in _flat(settings):
            print(f"{key} = {value!r}")

    show(settings, json_file, draw)


def _flat(values: dict, prefix: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for key, value in values.items():
        found += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return found
