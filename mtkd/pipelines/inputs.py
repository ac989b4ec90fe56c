"""The files that a step reads, apart from outputs of other steps, and their digests."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from mtkd.output_files.path_overlap import refuse_overlap
from mtkd.pipelines.step import Step, find_command, parameters
from mtkd.recipes import recipe_files
from tasks.common.errors import UserError, did_you_mean
from tasks.common.remote import local
from tasks.common.sha256 import digest_file
from tasks.common.urls import as_url
from tasks.data.file_patterns import matching_files
from tasks.data.file_readers import suffix_of
from tasks.data.sources import known_as, open_data
from tasks.task import Task
from tasks.task_names import resolve

_WRITTEN = ("out", "json", "predictions", "glue-submission")
_DIRECTORIES = ("corpus", "store")
_MODELS = ("teacher", "encoder", "init", "model", "against")  # also names on the hub
_OF_MODELS = ("*.json", "*.safetensors", "model/*")


def input_files(step: Step) -> list[Path]:
    """The files that a step reads and that no other step writes.

    Of a data directory, those of the step's tasks; of a model's directory, its weights and records.

    Raises:
        UserError: a file or directory does not exist, or a task is unknown.
    """
    paths = {path: None for key, value in step.raw.items() for path in _files_of_option(step, key, value)}
    return sorted(path for path in paths if path.is_file())


def check_outputs(steps: Iterable[Step]) -> None:
    """Check that no step writes where another one does.

    Raises:
        UserError: the output of a step is that of another one, or contains it.
    """
    writers: dict[Path, Step] = {}
    for step in steps:
        other = writers.setdefault(Path(os.path.realpath(step.out)), step)
        if other is not step:
            raise UserError(f"step {step.name!r}: it writes {step.out}, as the step {other.name!r} does")
    for place, step in writers.items():
        if outer := next((writers[folder] for folder in place.parents if folder in writers), None):
            raise UserError(
                f"step {step.name!r}: {step.out} lies inside {outer.out}, that of the step {outer.name!r}"
            )


def check_step_output(step: Step, pipeline: Path) -> None:
    """Check that what a step writes leaves the pipeline and the step's inputs alone (`refuse_overlap`)."""
    folder = next((folder for folder in Path(step.out).parents if os.path.lexists(folder)), Path())
    if not folder.is_dir():
        raise UserError(f"{folder} is a file, so {step.out} cannot be written")
    inputs = {key: value for key, value in step.options.items() if key not in _WRITTEN}
    refuse_overlap("out", Path(step.out), {"pipeline": pipeline, **inputs})


def _files_of_option(step: Step, key: str, value: Any) -> Iterable[Path]:
    if key in _WRITTEN or (key == "model" and str(value).startswith("http")):  # an endpoint
        return []
    texts = [text for text in _texts(value) if not text.startswith("@") and text != ""]
    if not texts:
        return []
    if key in ("tasks", "task"):
        return _task_files(step, texts)
    if key == "recipe":
        return [file for text in texts for file in recipe_files(text)]
    if key == "data":
        open_data(texts)
        roots = [Path(text) for text in texts if text not in ("pocket", "hub")]
        return [path for root in roots for path in _data_files(root, _tasks(step))]
    if key == "grid":
        return [Path(text) for text in texts if text.endswith(".toml")]
    if key == "unlabelled":
        return [path for text in texts for path in _unlabelled(text)]
    param = parameters(find_command(step.command))[key]
    must_exist = key in _DIRECTORIES or (isinstance(param.type, click.Path) and key not in _MODELS)
    if not must_exist and key not in _MODELS:
        return []
    return [path for text in texts for path in _files_at(key, text, must_exist)]


def _texts(value: Any) -> Iterator[str]:
    """The values of an option, with local copies in place of URLs; of TASK=VALUE, the value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield from (item.rpartition("=")[2].strip() for item in local(value).split(","))


def _tasks(step: Step) -> list[Task]:
    """The step's tasks; of a model's own tasks, those that are known without it."""
    names = _texts(step.raw.get("tasks", step.raw.get("task", [])))
    trains = step.command in ("refine", "distill") or step.command.startswith(("augment", "store"))
    return [task for name in names if trains or name.endswith(".toml") for task in resolve(name)]


def _task_files(step: Step, names: Iterable[str]) -> Iterator[Path]:
    """Task files and the files that they name."""
    yield from (Path(name) for name in names if name.endswith(".toml"))
    data_directories = [text for text in _texts(step.raw.get("data", [])) if Path(text).is_dir()]
    for task in _tasks(step):
        for root in (*map(Path, data_directories), None):
            yield from matching_files([*map(glob.escape, task.files.values()), *task.unlabelled], root)


def _data_files(root: Path, tasks: Iterable[Task]) -> list[Path]:
    """The data files of some tasks in a directory, at most three levels deep; without tasks, all."""
    names = {_plain(name) for task in tasks for name in (*known_as(task), task.trained_on or task.name)}
    files = [file for pattern in ("*/*", "*/*/*") for file in root.glob(pattern) if suffix_of(file)]
    return [
        file for file in files if not names or names & set(map(_plain, file.relative_to(root).parent.parts))
    ]


def _plain(name: str) -> str:
    """A name as GLUE's releases may write it: STS-B is stsb."""
    return "".join(filter(str.isalnum, name.lower()))


def _unlabelled(text: str) -> list[Path]:
    """The files that a pattern matches; none for the name of a split."""
    files = matching_files([text], Path())
    if not files and (suffix_of(Path(text)) or "/" in text or "*" in text):
        raise _missing("unlabelled", text)
    return files


def _files_at(key: str, text: str, must_exist: bool) -> list[Path]:
    """A file, or the files of a model, corpus or store; a name on the hub stays as it is."""
    path = Path(text)
    if path.is_dir():
        return [file for pattern in _OF_MODELS for file in path.glob(pattern)]
    is_path = path.is_absolute() or text.startswith(".") or ("/" in text and Path(path.parts[0]).exists())
    if not path.exists() and (must_exist or is_path):
        raise _missing(key, text)
    return [path]


def _missing(key: str, text: str) -> UserError:
    folder = Path(text).parent
    beside = [str(folder / entry.name) for entry in folder.iterdir()] if folder.is_dir() else []
    return UserError(f"`{key}={text!r}`: no such file or directory{did_you_mean(text, beside)}")


class Digests:
    """Digests of files, kept from one call of `mtkd run` to the next for files that were not touched.

    Args:
        known: path -> [size, time of the last change, digest], of an earlier call.
    """

    def __init__(self, recorded: dict[str, list[Any]]):
        self._recorded, self.current = recorded, dict[str, list[Any]]()

    def of(self, path: Path) -> str:
        """The digest of a file's bytes."""
        key, about = as_url(str(path)), path.stat()
        stamp = [about.st_size, about.st_mtime_ns]
        if key not in self.current:
            record = self._recorded.get(key, [])
            self.current[key] = record if record[:2] == stamp else [*stamp, digest_file(path)]
        digest: str = self.current[key][2]
        return digest
