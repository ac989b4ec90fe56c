"""`mtkd.init_pipeline`: from data files to a task file and a pipeline to start from."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mtkd.output_files.remote_paths import remote_paths
from mtkd.pipelines.init_data import Part, read_parts, without_role
from mtkd.pipelines.init_files import pipeline_text, task_text
from tasks.checks.data_quality import labels_alike
from tasks.checks.row_checks import is_blank
from tasks.checks.schema import fit_columns
from tasks.common.arguments import checked
from tasks.common.errors import UserError, counted
from tasks.common.files import atomic_path, check_output_file, locked
from tasks.data.loading import require_valid
from tasks.data.unlabelled import checked_batches
from tasks.glue import TASKS
from tasks.guess import Guess, guess_task
from tasks.guess_labels import without_label
from tasks.task import UNLABELLED, Task
from tasks.task_file import check_task
from tasks.task_keys import A_NAME, is_name
from tasks.task_names import GROUPS
from tasks.task_types.labels import label_texts

PIPELINE = "pipeline.toml"
WRITER = "mtkd init"  # named in every file that it writes
_MOST_VALIDATION = 5000  # texts that are split off


@dataclass(frozen=True)
class InitResult:
    """What `init_pipeline` found and wrote.

    Attributes:
        task: the task that was guessed.
        pipeline, task_file: the files to look at, and to run.
        rows: split -> number of rows.
        notes: what was done with the data, and what else could have been chosen.
    """

    task: Task
    pipeline: Path
    task_file: Path
    rows: dict[str, int]
    notes: tuple[str, ...]


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
    validation_fraction: float = 0.1,
    overwrite: bool = False,
) -> InitResult:
    """Look at data, and write a task file and a pipeline (`run_pipeline`) to start from.

    Args:
        data: CSV, TSV, JSONL or parquet files, of which names such as dev.csv say what they hold; or a data
            set on the hub, as NAME or NAME:CONFIGURATION.
        out: the directory to write to.
        name: the name of the task; by default that of the data.
        columns, label, kind: one or two text columns, the label column and the task type (classify, regress,
            multilabel or span), where they are not to be guessed.
        validation: the file of validation rows.
        unlabelled: files of rows without labels.
        validation_fraction: which part of the training rows becomes the validation rows if there are none;
            at most 5,000 texts. Rows with the same texts stay together.
        overwrite: replace the files that an earlier call wrote.

    Returns:
        The task, the files and the number of rows of each split.

    Raises:
        UserError: files that are missing, empty or invalid, or in which no text and labels can be found; or
            files in `out` that would be replaced.
    """
    if not 0 < validation_fraction < 1:
        raise UserError(
            f"`validation_fraction={validation_fraction}` is not valid", expected="a number between 0 and 1"
        )
    names = [str(item) for item in ([data] if isinstance(data, str | Path) else data)]
    splits, others = read_parts(names, validation, unlabelled)
    inputs = {part.path.resolve() for part in (*splits.values(), *others) if part.path}
    guess = _guess(splits, columns, label, kind)
    for part in others:
        labels = guess.label in part.raw.table.column_names
        if labels and not pc.all(without_label(part.raw.table[guess.label], guess.kind)).as_py():
            raise UserError(
                f"{part.raw.path} and {splits['train'].raw.path} both hold labelled rows",
                hint="name the validation rows with `validation=FILE`, or call their file validation or dev",
            )
    task = _task(_name(name, names), guess)
    texts = [part for part in (splits.pop(UNLABELLED, None), *others) if part]
    notes: list[str] = []
    for split, part in [*splits.items(), *((UNLABELLED, part) for part in texts)]:
        _check(task, split, part)
        empty = sum(pc.sum(is_blank(part.raw.table[name])).as_py() or 0 for name in task.columns)
        notes += [f"{counted(empty, 'empty text')} in the {split} rows"] if empty else []
    if guess.others:
        notes.append(f"{', '.join(map(repr, guess.others))} also looks like text")
    if guess.other_labels:
        notes.append(f"the label could also be {', '.join(map(repr, guess.other_labels))}: `label=COLUMN`")
    if task.kind == "classify" and kind is None and all(name.isdigit() for name in guess.labels):
        notes.append(f"the numbers in {guess.label!r} are taken for classes: `kind=regress` for scores")
    notes += labels_alike(task)
    train = splits["train"].raw.table
    lacks_label = without_label(train[guess.label], guess.kind)
    if rows := pc.sum(lacks_label).as_py():
        notes.append(f"{counted(rows, 'training row')} without a label: text for the student")
        texts.append(Part.of(train.filter(lacks_label).drop_columns([guess.label])))
        splits["train"] = Part.of(train := train.filter(pc.invert(lacks_label)))
    if task.kind == "classify" and guess.label not in splits["train"].class_names:
        trained = set(label_texts(train[guess.label]).to_pylist())
        for unseen in [text for text in guess.labels if text not in trained][:3]:
            notes.append(f"the label {unseen!r} is in validation rows, but in no training row: a typo?")
    if "validation" not in splits:
        held_out = _held_out(train, guess, validation_fraction)
        rows = pc.sum(held_out).as_py()
        notes.append(f"no validation rows: {rows:,} of {counted(len(train), 'training row')} are split off")
        splits |= {
            "train": Part.of(train.filter(pc.invert(held_out))),
            "validation": Part.of(train.filter(held_out)),
        }
    return _write(Path(out), task, splits, texts, notes, inputs, overwrite)


def _guess(splits: Mapping[str, Part], columns: Sequence[str], label: str | None, kind: str | None) -> Guess:
    """The guess from training and validation rows, whose labels may differ."""
    train = splits["train"]
    tables = [train.raw.table]
    names = tables[0].column_names
    if (validation := splits.get("validation")) and set(names) <= set(validation.raw.table.column_names):
        tables.append(validation.raw.table.select(names))
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException:
        table = tables[0]
    hints = {"columns": columns, "label": label, "kind": kind, "class_names": train.class_names}
    return guess_task(table, train.raw.path, **hints)  # type: ignore[arg-type]


def _task(name: str, guess: Guess) -> Task:
    fields = {"labels": guess.labels, "range": guess.range, "unanswerable": guess.unanswerable}
    task = Task(name, guess.kind, guess.columns, label=guess.label, **fields)  # type: ignore[arg-type]
    return check_task(replace(task, metrics=task.type.default_metrics))


def _name(requested: str | None, names: Sequence[str]) -> str:
    """The name of the task: the one that is given, or that of the file, its directory or the data set.

    What says the role of a file is left out: the name is `reg` for reg_train.csv.
    """
    if requested in TASKS or requested in GROUPS:
        what = "task" if requested in TASKS else "group of tasks"
        raise UserError(f"`name={requested}` is a built-in {what}", hint="choose another name")
    if requested is not None and not is_name(requested):
        raise UserError(f"`name={requested}` cannot be the name of a task", expected=A_NAME)
    if requested is not None:
        return requested
    path = Path(names[0].partition(":")[0])
    stem = path.name.split(".")[0]
    stem = without_role(stem)
    stem = path.resolve().parent.name if stem.lower() in ("", "data") else stem
    name = re.sub(r"[^A-Za-z0-9_]+", "-", stem).strip("-")
    name = name if name[:1].isalpha() else f"task-{name}".strip("-")
    return f"{name}-own" if name in TASKS or name in GROUPS else name


def _check(task: Task, split: str, part: Part) -> None:
    """Validate the rows of a split as training does; training and test rows may lack labels."""
    if split == UNLABELLED:
        for _ in checked_batches(task, iter([part.raw])):
            pass
        return
    lenient = replace(task, test=("train", "test"))
    raw = replace(part.raw, table=fit_columns(lenient, split, part.raw))
    require_valid(lenient, split, raw, raw.path)


def _held_out(table: pa.Table, guess: Guess, fraction: float) -> pa.Array:
    """True for the rows that become validation rows: those of the texts with the lowest digests."""
    columns = guess.columns[-1:] if guess.kind == "span" else guess.columns
    texts = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    order = sorted(set(texts), key=lambda text: hashlib.sha256(repr(text).encode()).digest())
    if len(order) < 2:
        raise UserError("one text cannot be split into training and validation rows", expected="two or more")
    chosen = set(order[: min(_MOST_VALIDATION, max(1, round(fraction * len(order))))])
    return pa.array(np.array([text in chosen for text in texts]))


def _write(
    out: Path,
    task: Task,
    splits: Mapping[str, Part],
    texts: Sequence[Part],
    notes: Sequence[str],
    inputs: Collection[Path],
    overwrite: bool,
) -> InitResult:
    """Write the task file, the pipeline, and the rows that are in no file of their own."""
    contents: dict[Path, bytes] = {}

    def path_of_split(split: str, part: Part) -> str:
        """The file of a split, relative to `out` if it is in or beside it."""
        if part.path is not None:
            near = os.path.relpath(part.path.resolve(), os.path.realpath(out))
            return near if near.count("..") < 2 else str(part.path.resolve())
        sink = pa.BufferOutputStream()
        pq.write_table(part.raw.table.replace_schema_metadata({"written by": WRITER}), sink)
        contents[out / f"{task.name}-{split}.parquet"] = sink.getvalue().to_pybytes()
        return f"{task.name}-{split}.parquet"

    files = {split: path_of_split(split, part) for split, part in splits.items()}
    unlabelled_files = [
        path_of_split(f"{UNLABELLED}-{n}" if n else UNLABELLED, part) for n, part in enumerate(texts)
    ]
    task_file, pipeline = out / f"{task.name}.toml", out / PIPELINE
    if overwritten_inputs := [p for p in contents if Path(os.path.realpath(p)) in inputs]:
        raise UserError(
            f"{overwritten_inputs[0]} would be overwritten with some of its own rows",
            hint="choose another directory with `out`",
        )
    contents[task_file] = task_text(task, files).encode()
    contents[pipeline] = pipeline_text(task, splits["train"].raw.table, unlabelled_files).encode()
    _refuse_replacing(contents, overwrite)
    with locked(out):
        for path, raw in contents.items():
            with atomic_path(path) as temporary:
                temporary.write_bytes(raw)
    rows = {split: len(part.raw.table) for split, part in splits.items()}
    if texts:
        rows[UNLABELLED] = sum(len(part.raw.table) for part in texts)
    return InitResult(task, pipeline, task_file, rows, tuple(notes))


def _refuse_replacing(contents: Mapping[Path, bytes], overwrite: bool) -> None:
    """Check that the files to be written replace none, or with `overwrite` only those of an earlier call."""
    for path in contents:
        check_output_file(path)
    # A file with this content is from the same call, which was killed.
    before = {path: path.read_bytes() for path in contents if path.exists()}
    replaced = [path for path, raw in before.items() if raw != contents[path]]
    if replaced and not overwrite:
        raise UserError(
            f"{', '.join(map(str, replaced))} would be replaced",
            hint="choose another directory with `out`, or replace them with `overwrite=True`",
        )
    if foreign := [path for path in replaced if WRITER.encode() not in before[path]]:
        raise UserError(
            f"{foreign[0]} would be replaced, and is not a file that {WRITER} wrote",
            hint="choose another directory with `out`",
        )
