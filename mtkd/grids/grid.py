"""What a grid's file holds: cells x tasks x seeds."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field

from mtkd.evaluation.baselines import CONSTANT, COSINE, LINEAR
from mtkd.grids.cell import (
    NAME_ALONE,
    Bench,
    Cell,
    CellName,
    FirstStep,
    RefineStep,
    Seeds,
    SettingValues,
    TaskSpecs,
)
from mtkd.recipes import load_settings, recipe_command
from mtkd.recipes.control import control_settings
from mtkd.settings import DistillSettings
from mtkd.strict_settings import StrictSettings
from tasks.common.errors import UserError, shorten, unknown

_INIT = "student.transformer.init"
TEACHER = "teacher"  # the row of the models that the grid refines, or of the given teacher

# Key of a grid's file -> the hint if it is missing or invalid.
EXAMPLES = {
    "title": 'for example title = "Four layers or six"',
    "recipe": 'for example recipe = "layerwise-3"',
    "tasks": 'tasks = ["sst2", "rte"] trains a student for each task, ["sst2,rte"] one student for both',
    "seeds": "for example seeds = [0, 1]",
    "cells": "add a table [cells.NAME] for each row of the result",
}

_STEPS_OF = (
    "name a table [cells.NAME] with the same tasks and without steps_of, or leave steps_of out, so that the "
    "cell trains for as long as its recipe says"
)

# The keys of a cell that only recipes for some commands have.
_ONLY_WITH = {
    "first": ("distill", "finetune"),
    "corpus": ("distill",),
    "steps_of": ("distill",),
    "control": ("distill",),
    "then": ("distill", "refine"),
}


def control_of(name: str) -> str:
    """The name of the cell that `control` adds for a cell."""
    return f"{name}, labels"


class Grid(StrictSettings):
    """Cells x tasks x seeds.

    Attributes:
        tasks: the task specifications; each is one run: "rte,stsb" is one run on both tasks.
        set: dotted setting -> value, for every cell whose recipe is for the same command as the grid's.
        first: the `first` of cells that distil or fine-tune and have none; its settings also apply to the
            `first` of cells with the same recipe.
        refine: how the teacher is refined first; None = it is given.
        reference: the cell, or another row of the table, that the others are compared with; None = the first
            cell.
        baselines: True for rows of the baselines that train no encoder.
    """

    title: str
    source: str = ""
    recipe: str
    tasks: TaskSpecs = Field(min_length=1)
    seeds: Seeds = Field([0], min_length=1)
    set: SettingValues = Field(default_factory=dict)
    cells: dict[CellName, Cell] = Field(min_length=1)
    bench: Bench = Bench()
    first: Annotated[FirstStep, NAME_ALONE] | None = None
    refine: RefineStep | None = None
    reference: str | None = None
    baselines: bool = True

    def recipe_of(self, name: str) -> str:
        """The recipe of a cell."""
        return self.cells[name].recipe or self.recipe

    def sets_of(self, name: str) -> dict[str, Any]:
        """The settings of a cell, those of the grid included."""
        shared = recipe_command(self.recipe_of(name)) == recipe_command(self.recipe)
        return (self.set if shared else {}) | self.cells[name].set

    def first_of(self, name: str) -> FirstStep | None:
        """The run on plain text that a cell starts from, the settings of the grid's `first` included."""
        own = self.cells[name].first
        if own is None:
            return self.first if recipe_command(self.recipe_of(name)) in _ONLY_WITH["first"] else None
        if own and self.first and own.recipe == self.first.recipe:
            seed = own.seed if "seed" in own.model_fields_set else self.first.seed
            return FirstStep(recipe=own.recipe, set=self.first.set | own.set, seed=seed)
        return own or None

    def task_specs_of(self, name: str) -> list[str]:
        """The task specifications that a cell is trained on, with one run per seed for each."""
        return self.cells[name].tasks or self.tasks

    @property
    def task_specs(self) -> list[str]:
        """The task specifications that any cell is trained on."""
        return list(dict.fromkeys(task_spec for name in self.cells for task_spec in self.task_specs_of(name)))

    @property
    def needs_teacher(self) -> bool:
        """True unless every cell refines an encoder, or fine-tunes a model of its own `first`."""
        commands = {name: recipe_command(self.recipe_of(name)) for name in self.cells}
        return any(
            command == "distill" or (command == "finetune" and not self.first_of(name))
            for name, command in commands.items()
        )

    @property
    def reference_row(self) -> str:
        """The row that the others are compared with."""
        return self.reference or next(iter(self.cells))

    def with_controls(self, without: Collection[str] = ()) -> Grid:
        """This grid with the cell that `control` adds after each cell that asks for one.

        Args:
            without: added cells to leave out.

        Raises:
            UserError: a cell learns from no teacher, or the name of its control is taken.
        """
        cells: dict[str, Cell] = {}
        for name, cell in self.cells.items():
            cells[name] = cell
            if cell.control and control_of(name) not in without:
                try:
                    cells[control_of(name)] = self._control(name, cell)
                except UserError as error:
                    raise UserError(f"cell {name!r}: " + "\n".join(error.lines())) from error
        return self.model_copy(update={"cells": cells})

    def _control(self, name: str, cell: Cell) -> Cell:
        if control_of(name) in self.cells:
            raise UserError(
                f"control adds the cell {control_of(name)!r}, which already exists",
                hint="rename that cell, or remove `control`",
            )
        recipe = self.recipe_of(name)
        if (command := recipe_command(recipe)) != "distill":
            raise UserError(
                f"`control` applies only to recipes for mtkd distill, and {recipe} is for mtkd {command}",
                hint="remove `control`",
            )
        settings = load_settings(recipe, "distill", self.sets_of(name))
        if settings.supervision == "labels":
            raise UserError(
                "control adds a student that learns from labels alone, but this one does so itself",
                hint=f"remove `control`, or `supervision`, or leave the cell {control_of(name)!r} out",
            )
        control = control_settings(settings)
        if self.first_of(name) and _INIT not in self.sets_of(name):
            control.pop(_INIT, None)  # it also starts from the run on plain text
        sets = cell.set | control
        changes = {"corpus": False, "limit": None, "control": False, "steps_of": cell.steps_of or name}
        return cell.model_copy(update={"set": sets, **changes})

    def check(self, has_teacher: bool = False) -> None:
        """Validate the settings of every cell.

        Args:
            has_teacher: True if a teacher is given, which has a row of its own.

        Raises:
            UserError: a recipe or setting is unknown; names the cell.
        """
        if self.refine:
            if TEACHER in self.cells:
                raise UserError(
                    f"a cell is called {TEACHER!r}, like the row of the refined teacher",
                    hint="rename the cell",
                )
            load_settings(self.refine.recipe, "refine", self.refine.set)
            if "train.seed" in self.refine.set:
                raise UserError("[refine] sets train.seed", hint="set `seed` of [refine] instead")
        rows = [*self.cells, *([TEACHER] if self.refine or has_teacher else [])]
        if self.baselines:
            rows += [CONSTANT, LINEAR, COSINE]
        if self.reference is not None and self.reference not in rows:
            hint = "pass `teacher`, which gets a row" if self.reference == TEACHER else None
            raise unknown("row named as the reference:", self.reference, rows, hint=hint)
        for name, cell in self.cells.items():
            try:
                self._check_cell(name, cell)
            except UserError as error:
                raise UserError(f"cell {name!r}: " + "\n".join(error.lines())) from error

    def _check_cell(self, name: str, cell: Cell) -> None:
        command = recipe_command(self.recipe_of(name))
        settings = load_settings(self.recipe_of(name), command, self.sets_of(name))
        if isinstance(settings, DistillSettings):
            settings.resolved_stages()
        wrong = [key for key in _ONLY_WITH if getattr(cell, key) and command not in _ONLY_WITH[key]]
        if wrong:
            raise UserError(
                f"`{wrong[0]}` cannot be used with a recipe for mtkd {command}", hint=f"remove `{wrong[0]}`"
            )
        if first := self.first_of(name):
            load_settings(first.recipe, "distill", first.set)
        sets = [self.sets_of(name), *(step.set for step in (first, cell.then) if step)]
        if seeds := [part["train.seed"] for part in sets if "train.seed" in part]:
            hint = f"use the grid's seeds = [{seeds[0]}]"
            raise UserError(f"train.seed = {seeds[0]} has no effect", hint=hint)
        if cell.then:
            load_settings(cell.then.recipe, "finetune", cell.then.set)
        if cell.steps_of is not None:
            others = [other for other in self.cells if other != name and not self.cells[other].steps_of]
            if cell.steps_of in self.cells and cell.steps_of not in others:
                raise UserError(
                    f"steps_of names {cell.steps_of!r}, which does not choose its number of steps itself",
                    expected=f"a cell without steps_of: {shorten(others) or 'there is none'}",
                    hint=_STEPS_OF,
                )
            if cell.steps_of not in others:
                raise unknown("cell (steps_of)", cell.steps_of, others, hint=_STEPS_OF)
            if self.task_specs_of(cell.steps_of) != self.task_specs_of(name):
                raise UserError(
                    f"steps_of names {cell.steps_of!r}, which is trained on other tasks", hint=_STEPS_OF
                )
