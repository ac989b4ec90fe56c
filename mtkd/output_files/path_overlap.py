"""Protecting inputs: no output may be an input, contain one, or lie inside a model.

Only paths are checked, before anything is written. Links are followed, and local copies of URLs count as
these URLs.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from mtkd.output_files.output_directory import CLAIM
from tasks.common.digests import DIGESTS
from tasks.common.errors import UserError
from tasks.common.reading import real_path
from tasks.common.records import read_toml
from tasks.common.urls import as_url

# Readers recognise a complete output by one of these files; they are uploaded last, in this order.
OUTPUT_MARKERS = ("model.json", "config.json", "questions.json", "export.json", "manifest.json", "run.json")
# A directory with one of these files is a model, or an output of mtkd, and must not hold other outputs.
_MARKERS = (*OUTPUT_MARKERS, DIGESTS, CLAIM)
_ROW_ARGUMENTS = ("data", "text")  # directories that may also hold outputs, such as `data=.`
_FILE_ARGUMENTS = ("tasks", "task", "unlabelled", "settings", "sets")  # directories are not read by these
_INSIDE, _CONTAINS = "lies inside", "contains"
_MAX_DEPTH = 20  # length of a chain of TOML files that name each other
_NAMES = ("pocket", "hub", "minilm", "rules", "scratch")  # never paths, even if such a file exists


def refuse_overlap(name: str, out: Path, inputs: Mapping[str, Any], *, may_contain: bool = False) -> None:
    """Check that an output does not overwrite an input.

    Args:
        name: the argument that names the output, for messages.
        out: the output, a file or a directory.
        inputs: argument -> its value; see `named_paths`.
        may_contain: whether the output may be a directory that contains inputs, because it replaces nothing.

    Raises:
        UserError: the output is an input, contains one, or lies inside a model, run, corpus or store.
    """
    output = _comparable(out)
    for argument, value in inputs.items():
        with refuse_cycles(argument):
            paths = list(named_paths(argument, value))
        for path in paths:
            relation = _relation(output, path, argument)
            if relation and not (may_contain and relation == _CONTAINS):
                what = f"the path of the {argument.replace('_', ' ')}"
                where = what if relation == "is" else f"{path}, {what}"
                lost = "" if relation == _INSIDE else ": it would be overwritten"
                raise UserError(
                    f"`{name}={str(out)!r}` {relation} {where}{lost}",
                    expected="a path that the command does not read",
                    hint=f"choose another `{name}`",
                )


@contextlib.contextmanager
def refuse_cycles(argument: str) -> Iterator[None]:
    """Raise UserError if reading a nested value fails because it contains itself."""
    try:
        yield
    except RecursionError:
        raise UserError(f"`{argument}` contains itself, or is nested too deeply") from None


def named_paths(argument: str, value: Any) -> Iterator[Path]:
    """The files and directories that an argument names, where they exist.

    Args:
        value: a path, a pattern or TASK=PATH, or several of these, comma-separated; a list or mapping of such
            values; an object with the attribute `path`, such as an `mtkd.Model`; or anything else, which
            names no file.
    """
    paths = (Path(path) for text in _texts(value) for path in _existing(text))
    yield from (path for path in paths if argument not in _FILE_ARGUMENTS or path.is_file())


def _existing(text: str) -> Iterator[str]:
    """The paths in a text that exist."""
    parts = (text, *(part.rpartition("=")[2].strip() for part in text.split(",")))
    for part in dict.fromkeys(parts):
        if part and "\0" not in part and part not in _NAMES:
            yield from filter(os.path.lexists, {part, *(glob.glob(part) if glob.has_magic(part) else ())})


def _texts(value: Any) -> Iterator[str]:
    """The texts and paths in a value and in its nested lists and mappings, with the paths of models."""
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)
    elif isinstance(path := getattr(value, "path", None), Path):  # of a model
        yield str(path)


def files_of_toml(file: Path, seen: tuple[Path, ...] = ()) -> Iterator[Path]:
    """The files that the values of a TOML file name: the rows of a task, or what a recipe or pipeline uses.

    Relative paths start at the directory of the file, or at the current one.
    """
    try:
        values = read_toml(file)
    except UserError:  # the error is raised when the file is read for its purpose
        return
    for text in _texts(values):
        for path in map(Path, dict.fromkeys((*_existing(text), *_existing(str(file.parent / text))))):
            if path.is_file():
                yield path
            if path.suffix == ".toml" and path not in seen and len(seen) < _MAX_DEPTH:
                yield from files_of_toml(path, (*seen, path))


def _comparable(path: Path) -> PurePosixPath:
    """A path without links, or for a local copy its URL, so that two of them can be compared."""
    return PurePosixPath(as_url(str(real_path(path))))


def _relation(out: PurePosixPath, path: Path, argument: str) -> str | None:
    """How an output and an input overlap, in words; None if they do not."""
    input_path = _comparable(path)
    if out == input_path or (os.path.exists(out) and os.path.exists(path) and os.path.samefile(out, path)):
        return "is"
    if out in input_path.parents:
        return _CONTAINS
    if input_path not in out.parents:
        return None
    if argument in _ROW_ARGUMENTS:
        return "is a file of rows inside" if _holds_rows(out) else None
    folders = [out.parent, *out.parent.parents]
    between = folders[: folders.index(input_path) + 1]
    marked = any(os.path.lexists(folder / marker) for folder in between for marker in _MARKERS)
    return _INSIDE if marked else None


def _holds_rows(out: PurePosixPath) -> bool:
    """True for an existing file of rows or of plain text."""
    from tasks.data.file_readers import suffix_of

    return Path(out).is_file() and suffix_of(Path(out)) not in (None, ".json")
