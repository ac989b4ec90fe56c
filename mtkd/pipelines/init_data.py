"""Read the data for `mtkd init`: files, whose names say which split they hold, or a data set on the hub."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tasks.common.errors import UserError, counted, shorten
from tasks.common.reading import real_path, require_file
from tasks.data.class_names import with_names
from tasks.data.file_readers import READERS, read_file, suffix_of
from tasks.data.raw_table import RawTable
from tasks.guess import Guess
from tasks.guess_labels import without_label
from tasks.task import UNLABELLED

_ROLES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "eval"),
    "test": ("test",),
    UNLABELLED: (UNLABELLED, "unlabeled", "unsupervised"),
}

_EXPECTED = "one task: labelled rows in one file; validation rows, test rows and plain text in others"
_SAVE_SPLITS = (
    "save the splits that you need as files with `datasets.load_dataset(NAME)[SPLIT].to_parquet(FILE)`, and "
    "name these files instead"
)
_TWO_TASKS = "for two tasks, make a pipeline of each and join them (docs/pipelines.md)"


@dataclass(frozen=True)
class Part:
    """All or some rows of a split.

    Attributes:
        path: the file that holds exactly these rows, so that a task file can name it; None if there is none.
    """

    raw: RawTable
    path: Path | None = None

    @classmethod
    def of(cls, table: pa.Table) -> Part:
        """Rows that are in no file yet."""
        return cls(RawTable(table, "rows"))


def read_parts(
    names: Sequence[str], validation: str | Path | None, unlabelled: Sequence[str | Path]
) -> tuple[dict[str, Part], list[Part]]:
    """Read the data: its splits, by the names of the files, and files that are used as unlabelled rows.

    Args:
        names: files, or one data set on the hub.
        validation, unlabelled: files whose role is given.

    Returns:
        Split -> rows, and the further files.

    Raises:
        UserError: a file does not exist, cannot be read or is given twice; two files have the same role; or
            none holds training rows.
    """
    _refuse_repeated([*names, *([validation] if validation else []), *unlabelled])
    splits: dict[str, Part] = {}
    others: list[Part] = []
    from_hub = len(names) == 1 and not Path(names[0]).exists() and not _is_file_name(names[0])
    if from_hub:
        splits = _hub(names[0])
    elif len(names) == 1:
        splits["train"] = _file(Path(names[0]))
    else:
        for path in map(Path, names):
            role = role_of(path.stem)
            if role is None and "train" in splits:
                others.append(_file(path))
            else:
                _add(splits, role or "train", _file(path))
    if validation:
        _add(splits, "validation", _file(Path(validation)))
    others += [_file(Path(path)) for path in unlabelled]
    if "train" not in splits and from_hub:
        raise UserError(f"no split of {names[0]} on the hub is for training", hint=_SAVE_SPLITS)
    if "train" not in splits:
        problem = f"none of {', '.join(names)} is for training" if names else "no data is named"
        raise UserError(
            problem,
            hint="add a file of labelled training rows; to distil a teacher without them, write a task file "
            "(docs/unlabelled.md#without-labelled-training-rows)"
            if names
            else "name a file of labelled rows; without validation rows, some of them are set aside",
        )
    return splits, others


def with_text_column(part: Part, columns: Sequence[str]) -> Part:
    """The rows, in which the texts of a .txt file are in the task's only text column."""
    is_lines = part.path is not None and suffix_of(part.path) == ".txt"
    if not is_lines or len(columns) != 1:
        return part
    return replace(part, raw=replace(part.raw, table=part.raw.table.rename_columns(list(columns))))


def _refuse_repeated(files: Sequence[str | Path]) -> None:
    """Raise UserError if a file is given twice, even by different paths."""
    known: dict[Path, str] = {}
    for file in map(str, files):
        real = real_path(file)
        if real in known:
            other = "" if known[real] == file else f", also as {known[real]}"
            raise UserError(
                f"{file} is given twice{other}",
                expected="each file once",
                hint="leave one out; without validation rows, some of the training rows are set aside",
            )
        known[real] = file


def _add(splits: dict[str, Part], role: str, part: Part) -> None:
    """Add the rows of a split; UserError if the split already has rows."""
    if role in splits:
        is_of_hub = splits[role].path is None  # no file holds these rows
        hint = f"name only one of them, or join them into one file; {_TWO_TASKS}"
        raise UserError(
            f"{splits[role].raw.path} and {part.raw.path} both look like {role} rows",
            expected=_EXPECTED,
            hint=_SAVE_SPLITS if is_of_hub else hint,
        )
    splits[role] = part


def check_others(others: Sequence[Part], train: Part, guess: Guess, unlabelled: Collection[Path]) -> None:
    """Check that the further files of `read_parts` are unlabelled rows of the same task.

    Args:
        unlabelled: the files that the user gave as `unlabelled`.

    Raises:
        UserError: a file has labelled rows, or lacks a text column.
    """
    for part in others:
        names, path = part.raw.table.column_names, part.raw.path
        is_given = part.path is not None and real_path(part.path) in unlabelled
        if not is_given and (absent := [name for name in guess.columns if name not in names]):
            raise UserError(
                f"{path} has no column {absent[0]!r}, which holds the text of {train.raw.path}",
                expected=_EXPECTED
                if guess.kind != "span"
                else f"the columns {' and '.join(guess.columns)}, or only {guess.columns[1]} for paragraphs",
                hint=f"its columns are {shorten(names)}; rename one if it holds this text; {_TWO_TASKS}",
            )
        labelled = 0
        if guess.label in names:
            labelled = pc.sum(pc.invert(without_label(part.raw.table[guess.label], guess.kind))).as_py() or 0
        if labelled and is_given:
            raise UserError(
                f"{path} is given as `unlabelled`, but {counted(labelled, 'row')} in it "
                f"{'has' if labelled == 1 else 'have'} a label in the column {guess.label!r}",
                expected="unlabelled text",
                hint=f"delete the column {guess.label!r}, or use the file as training or validation rows",
            )
        if labelled:
            raise UserError(
                f"{path} and {train.raw.path} both hold labelled rows",
                expected=_EXPECTED,
                hint="pass the validation rows as `validation='FILE'`, or put `validation` or `dev` into the "
                f"name of their file; {_TWO_TASKS}",
            )


def role_of(stem: str) -> str | None:
    """The split that the name of a file or split stands for: "validation" for dev; None if unknown."""
    words = re.split(r"[^a-z]+", stem.lower())
    return next((role for role, usual in _ROLES.items() if set(words) & set(usual)), None)


def without_role(stem: str) -> str:
    """The name of a file without the word for its split: "reg" for "reg_train", "" for "train"."""
    usual = {word for words in _ROLES.values() for word in words}
    roles = [match for match in re.finditer(r"[a-z]+", stem.lower()) if match[0] in usual]
    if not roles:
        return stem
    parts = [stem[: roles[0].start()], stem[roles[0].end() :]]
    stripped = (re.sub(r"^[\W_]+|[\W_]+$", "", part) for part in parts)
    return next((part for part in stripped if re.search(r"[a-z]", re.sub(r"\bof\b", "", part.lower()))), "")


def _is_file_name(name: str) -> bool:
    return bool(suffix_of(Path(name))) or Path(name).is_absolute() or name.startswith(".")


def _file(path: Path) -> Part:
    """Read a file; UserError if it does not exist or a line cannot be read."""
    raw = read_file(require_file(path, f"a file that ends in {', '.join(READERS)}"), ())
    bad = [line for line in raw.bad_lines if line.level == "error"]
    if bad:
        raise UserError(
            f"{counted(len(bad), 'line')} of {path} cannot be read, the first is line {bad[0].line}: "
            f"{bad[0].message}",
            hint="correct or delete them",
        )
    return Part(replace(raw, table=with_names(raw.table)), path)


def _hub(name: str) -> dict[str, Part]:
    """Split -> rows of a data set on the hub; splits whose names stand for no split of mtkd are left out."""
    from tasks.data.hub_data import fetch_splits

    splits: dict[str, Part] = {}
    for split, table in fetch_splits(name).items():
        if role := role_of(split):
            _add(splits, role, Part(RawTable(with_names(table), f"hub:{name}/{split}")))
    return splits
