"""The parts of a grid's file: its cells, the runs before and after them, and their timing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt

from mtkd.recipes import dotted
from mtkd.strict_settings import StrictSettings
from tasks.common.arguments import MAX_BATCH, MAX_ROUNDS, MAX_TOKENS
from tasks.common.records import Seed, Text

_LONGEST_NAME = 100  # characters of the name of a cell


def _cell_name(name: str) -> str:
    if len(name) > _LONGEST_NAME or not name.isprintable() or not any(map(str.isalnum, name)):
        raise ValueError(f"up to {_LONGEST_NAME} printable characters, with a letter or digit")
    return name


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) < len(values):
        raise ValueError("a list without repeated values")
    return values


def _distinct_tasks(spec: str) -> str:
    words = [word.strip() for word in spec.split(",") if word.strip()]
    if len(set(words)) < len(words):
        raise ValueError("each task once")
    return spec


CellName = Annotated[str, AfterValidator(_cell_name)]  # also of a directory
Seeds = Annotated[list[Seed], AfterValidator(_distinct)]
TaskWords = Annotated[Text, AfterValidator(_distinct_tasks)]  # comma-separated
TaskSpecs = Annotated[list[TaskWords], AfterValidator(_distinct)]
# Written with dotted keys or as tables.
SettingValues = Annotated[dict[str, Any], AfterValidator(lambda settings: dotted(settings))]
NAME_ALONE = BeforeValidator(lambda value: {"recipe": value} if isinstance(value, str) else value)


class CellStep(StrictSettings):
    """A run before or after that of a cell. In a grid, the name of the recipe can stand for it.

    Attributes:
        set: dotted setting -> value.
    """

    recipe: str
    set: SettingValues = Field(default_factory=dict)


class FirstStep(CellStep):
    """The run on plain text that students start from.

    Attributes:
        seed: the seed of one run that all seeds of the grid share; "each" = one run for each of them.
    """

    seed: Seed | Literal["each"] = "each"


class ThenStep(CellStep):
    """The fine-tuning of a cell's model.

    Attributes:
        tasks: the tasks that it is fine-tuned on, one run for each; None = those that it was trained on.
    """

    tasks: TaskWords | None = None


class RefineStep(StrictSettings):
    """The refining of the teacher of all cells.

    Attributes:
        encoder: the pretrained encoder, if none is given with the grid (`--encoder`).
        tasks: the tasks of the one teacher of all cells; None = one teacher for each entry of the grid's
            tasks.
        seed: the seed of one teacher that all seeds of the grid share; "each" = one teacher for each of them.
        set: dotted setting -> value.
    """

    recipe: str = "refine"
    encoder: str | None = None
    tasks: TaskWords | None = None
    seed: Seed | Literal["each"] = 0
    set: SettingValues = Field(default_factory=dict)


class Cell(StrictSettings):
    """A row of the table; missing values are taken from the grid.

    Attributes:
        recipe: of any command: "refine" trains the encoder, "finetune" the teacher (or the model of `first`)
            on each task.
        tasks: the runs of this cell, instead of the grid's (`--tasks` does not replace them).
        set: dotted setting -> value; overrides the grid.
        first: a run on plain text (`--text`) that initialises the student, shared by cells with the same
            settings and seed; None = the grid's, False = none.
        corpus: the directory of an augmented corpus to add to the training rows, or True for the one that is
            given with the grid (`--corpus`). `{task}` in it is replaced by the task.
        then: the fine-tuning of the model on each of its tasks, or on others; the fine-tuned models are
            scored.
        steps_of: the cell from which this one takes its number of steps and of evaluations.
        limit: the maximum number of training rows per task; None = as for the other cells (`--limit`).
        control: True adds the cell "NAME, labels" for the cell NAME: the same student, trained for as many
            steps on labels alone, without the cell's `corpus` and `limit`.
    """

    recipe: str | None = None
    tasks: TaskSpecs = Field(default_factory=list)
    set: SettingValues = Field(default_factory=dict)
    first: Annotated[FirstStep, NAME_ALONE] | Literal[False] | None = None
    corpus: bool | Text = False
    then: Annotated[ThenStep, NAME_ALONE] | None = None
    steps_of: str | None = None
    limit: PositiveInt | None = None
    control: bool = False


class Bench(StrictSettings):
    """Settings for timing the inference of the cells' students at each batch size; none: no timing."""

    seq_len: int = Field(128, ge=1, le=MAX_TOKENS)
    batches: Annotated[list[Annotated[int, Field(ge=1, le=MAX_BATCH)]], AfterValidator(_distinct)] = Field(
        [64]
    )
    rounds: int = Field(10, ge=1, le=MAX_ROUNDS)
