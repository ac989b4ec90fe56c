"""`mtkd.init_pipeline`: write a task file and a pipeline to start from, for given data files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow.compute as pc

from mtkd.output_files.remote_paths import remote_paths
from mtkd.pipelines.init_answers import with_positions
from mtkd.pipelines.init_contents import PIPELINE, JobRows, file_contents, path_from
from mtkd.pipelines.init_data import Part, check_others, read_parts, with_text_column
from mtkd.pipelines.init_labels import guess_for_teacher, with_teacher_labels
from mtkd.pipelines.init_lengths import choose_length
from mtkd.pipelines.init_notes import (
    few_rows_notes,
    few_validation_rows_notes,
    guess_notes,
    label_notes,
    number_notes,
    probability_notes,
    trained_notes,
    unlabelled_note,
)
from mtkd.pipelines.init_paragraphs import separate_paragraphs
from mtkd.pipelines.init_split import split_validation_rows
from mtkd.pipelines.init_student import DEFAULT_RECIPE, StudentPlan, plan_student
from mtkd.pipelines.init_task import choose_task_name, name_notes, task_from_guess, validate_rows
from mtkd.pipelines.init_write import earlier_runs_notes, write_files
from tasks.common.arguments import MAX_TOKENS, Range, checked
from tasks.common.errors import UserError, counted, shorten
from tasks.common.hub_loading import DEFAULT_ENCODER
from tasks.common.reading import real_path
from tasks.common.sha256 import digest_file
from tasks.data.row_checks import is_blank
from tasks.guess import Guess
from tasks.guess_labels import without_label
from tasks.task import UNLABELLED, Task


@dataclass(frozen=True, repr=False)
class InitResult:
    """What `init_pipeline` found and wrote.

    Attributes:
        task: the task that was guessed.
        pipeline, task_file: the files that were written, to check and then to run.
        rows: split -> number of rows; for a span task also `paragraphs`, if there are any.
        max_length: the number of tokens to which the models truncate a row.
        notes: what was done with the data, what else could have been chosen, and possible mistakes.
        files: the names of all files that were written to `out`.
    """

    task: Task
    pipeline: Path
    task_file: Path
    rows: dict[str, int]
    max_length: int
    notes: tuple[str, ...]
    files: tuple[str, ...] = ()

    @property
    def guessed(self) -> dict[str, str]:
        """What was guessed: name -> text."""
        task = self.task
        texts = {
            "task": f"{task.name} ({task.kind})",
            "text": ", ".join(task.columns),
            "label": task.label,
            "labels": f"{len(task.labels)}: {shorten(task.labels)}" if task.labels else "",
            "answers": "a question may have no answer" if task.unanswerable else "",
            "range": "{:g} to {:g}".format(*task.range) if task.range else "",
            "rows": ", ".join(f"{split} {count:,}" for split, count in self.rows.items()),
            "length": f"at most {self.max_length} tokens per row",
        }
        return {name: text for name, text in texts.items() if text}

    def __str__(self) -> str:
        """What was guessed, the pipeline, and the notes."""
        values = self.guessed | {"pipeline": str(self.pipeline)}
        lines = [f"{name:<10}{text}" for name, text in values.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    __repr__ = __str__


@checked
@remote_paths()
def init_pipeline(
    data: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    name: str | None = None,
    columns: Sequence[str] = (),
    label: str | None = None,
    kind: str | None = None,
    validation: str | Path | None = None,
    unlabelled: Sequence[str | Path] = (),
    validation_fraction: float | None = None,
    max_length: Annotated[int, Range(8, MAX_TOKENS)] | None = None,
    recipe: str = DEFAULT_RECIPE,
    teacher: str | Path | None = None,
    teacher_labels: Mapping[str, str | Sequence[str]] | Sequence[str] | str | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
) -> InitResult:
    """Look at data, and write a task file and a pipeline (`run_pipeline`) to start from.

    Args:
        data: CSV, TSV, JSONL, JSON or parquet files, whose names say which split they hold (such as dev.csv);
            or a data set on the hub, as NAME or NAME:CONFIGURATION.
        out: the directory to write to.
        name: the name of the task; by default that of the data, such as `reviews`, or `rte-own` if there is
            a built-in task `rte`.
        columns, label, kind: one or two text columns, the label column, and the task type (classify, regress,
            multilabel or span); what is not given is guessed.
        validation: the file of validation rows.
        unlabelled: files of unlabelled rows; a .txt file has one text per line. For a span task, these lines,
            and the contexts in files without a column of questions, are paragraphs, and the pipeline
            generates questions about them.
        validation_fraction: the fraction of the training rows that is set aside for validation if there are
            no validation rows; by default 0.1, and at most 5,000 texts. Rows with the same texts stay
            together, and each label keeps training rows.
        max_length: the number of tokens to which the models truncate a row; by default, enough for 95% of the
            training rows and 95% of the validation rows, as the student's tokeniser splits them (at most 256,
            for questions 384).
        recipe: the recipe of the student and of the control, a name or a file.
        teacher: a run of mtkd or a fine-tuned transformers checkpoint (a directory, or a name on the hub); by
            default the pipeline trains a teacher.
        teacher_labels: the task's labels in the order of the checkpoint's outputs, if it does not name them.
        overwrite: replace the files that an earlier call wrote, and remove those that it wrote for another
            task.
        dry_run: only return the result, and write nothing.

    Returns:
        The task, the files and the number of rows of each split.

    Raises:
        UserError: a file is missing, empty or invalid; no text or no labels are found; a recipe or teacher
            does not fit; or files in `out` would be replaced.
    """
    if validation_fraction is not None and not 0 < validation_fraction < 1:
        raise UserError(
            f"`validation_fraction={validation_fraction}` is not valid", expected="a number between 0 and 1"
        )
    names = [str(item) for item in ([data] if isinstance(data, str | Path) else data)]
    splits, others = read_parts(names, validation, unlabelled)
    inputs = {
        real_path(part.path): digest_file(part.path) for part in (*splits.values(), *others) if part.path
    }
    answer_notes: list[str] = []
    for split in [split for split in splits if split != UNLABELLED]:
        splits[split], of_split = with_positions(splits[split], columns, label, kind)
        answer_notes += [f"{split} rows: {note}" for note in of_split]
    task_name = choose_task_name(name, names)
    order = _given_order(task_name, teacher, teacher_labels)
    named_teacher = str(teacher) if teacher else None
    guess = guess_for_teacher(splits, columns, label, kind, named_teacher, task_name, order)
    others = [with_text_column(part, guess.columns) for part in others]
    splits = {split: with_text_column(part, guess.columns) for split, part in splits.items()}
    if guess.kind == "span" and UNLABELLED in splits:  # it may hold paragraphs
        others.insert(0, splits.pop(UNLABELLED))
    others, paragraphs = separate_paragraphs(others, guess)
    check_others(others, splits["train"], guess, {real_path(path) for path in unlabelled})
    task = task_from_guess(task_name, guess)
    notes = answer_notes
    if teacher is not None:
        guess, splits, label_changes = with_teacher_labels(task, guess, splits, str(teacher), order)
        notes += label_changes
        task = task_from_guess(task.name, guess)
    unlabelled_parts = [part for part in (splits.pop(UNLABELLED, None), *others) if part]
    for split, part in [*splits.items(), *((UNLABELLED, part) for part in unlabelled_parts)]:
        notes += _validated(task, split, part)
    notes += name_notes(task.name, name)
    notes += guess_notes(task, guess, kind) + number_notes(guess, splits["train"])
    notes += probability_notes(task, splits["train"].raw)
    notes += _divide_training_rows(task, guess, splits, unlabelled_parts, validation_fraction)
    notes += trained_notes(task, splits["train"].raw.table, splits["validation"].raw.table)
    notes += few_validation_rows_notes(len(splits["validation"].raw.table))
    notes += label_notes(task, guess, splits)
    plan = _plan(task, recipe, teacher, order, Path(out))
    length, length_notes = choose_length(task, splits, max_length, plan)
    notes += length_notes
    training_rows = sum(len(part.raw.table) for part in (splits["train"], *unlabelled_parts))
    notes += few_rows_notes(task, recipe, training_rows)
    notes += [*plan.notes, *earlier_runs_notes(Path(out) / PIPELINE)]
    rows = JobRows(splits, unlabelled_parts, paragraphs)
    contents = file_contents(Path(out), task, rows, length, plan)
    sources = {path: digest for path, digest in inputs.items() if path not in rows.used_in_place}
    notes += write_files(Path(out), contents, inputs, sources, overwrite, dry_run)
    files = Path(out) / PIPELINE, Path(out) / f"{task.name}.toml"
    return InitResult(task, *files, rows.counts, length, tuple(notes), tuple(contents))


def _given_order(task: str, teacher: str | Path | None, labels: Any) -> list[str] | None:
    """The labels in the order of the checkpoint's outputs; None if the user gave none.

    Args:
        task: the name of the task.
        labels: the argument `teacher_labels`.
    """
    if not labels:
        return None
    from mtkd.teachers.teacher_names import parse_labels

    orders = parse_labels(labels)
    if teacher is None or set(orders) != {task}:
        raise UserError(
            f"`teacher_labels` gives an order of labels for {', '.join(orders)}"
            + ("" if teacher else ", but there is no `teacher`"),
            expected=f"the labels of {task!r} in the order of the outputs of a checkpoint",
        )
    return orders[task]


def _validated(task: Task, split: str, part: Part) -> list[str]:
    """A note on the empty texts of a split; UserError if a row has an error."""
    validate_rows(task, split, part)
    empty = sum(pc.sum(is_blank(part.raw.table[name])).as_py() or 0 for name in task.columns)
    return [f"{counted(empty, 'empty text')} in the {split} rows"] if empty else []


def _divide_training_rows(
    task: Task, guess: Guess, splits: dict[str, Part], unlabelled: list[Part], fraction: float | None
) -> list[str]:
    """Move training rows without a label to `unlabelled`, and set some rows aside if none are for validation.

    Args:
        splits: the rows of each split, which are changed.
        fraction: the argument `validation_fraction`.

    Returns:
        Notes on what was done.
    """
    notes = []
    train = splits["train"].raw.table
    lacks_label = without_label(train[guess.label], guess.kind)
    if count := pc.sum(lacks_label).as_py():
        notes.append(unlabelled_note(task, train[guess.label], count))
        unlabelled.append(Part.of(train.filter(lacks_label).drop_columns([guess.label])))
        splits["train"] = Part.of(train := train.filter(pc.invert(lacks_label)))
    if "validation" in splits and fraction is not None:
        raise UserError("`validation_fraction` has no effect, because there are validation rows")
    if "validation" not in splits:
        splits["train"], splits["validation"] = split_validation_rows(train, guess, fraction or 0.1)
        count = len(splits["validation"].raw.table)
        notes.append(
            f"there are no validation rows: {count:,} of {counted(len(train), 'training row')} are set aside "
            "for validation"
        )
    return notes


def _plan(
    task: Task, recipe: str, teacher: str | Path | None, order: Sequence[str] | None, out: Path
) -> StudentPlan:
    """The student and its teacher.

    Args:
        order: the labels in the order of the checkpoint's outputs, from the user; None = by name.
        out: the directory of the pipeline, at which its relative paths start.
    """

    def as_named(name: str) -> str:
        is_path = Path(name).exists() and name != DEFAULT_ENCODER
        return path_from(out, Path(name)) if is_path else name

    return plan_student(task, recipe, None if teacher is None else str(teacher), order, as_named)
