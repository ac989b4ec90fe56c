"""The files that a step reads, other than outputs of other steps, and their digests."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from mtkd.output_files.path_overlap import refuse_overlap
from mtkd.pipelines.step import Step, find_command, parameters
from mtkd.recipes import recipe_files
from tasks.common.errors import UserError, did_you_mean
from tasks.common.reading import real_path
from tasks.common.remote import with_local_paths
from tasks.common.sha256 import digest_file
from tasks.common.urls import as_url
from tasks.data.file_patterns import matching_files
from tasks.data.file_readers import suffix_of
from tasks.data.sources import known_as, open_data
from tasks.task import Task
from tasks.task_names import resolve

# Options by what they name.
_OUTPUTS = ("out", "json", "predictions", "glue-submission")
_DIRECTORIES = ("corpus", "store")
_MODELS = ("teacher", "encoder", "init", "model", "against")  # a directory, or a name on the hub

_SEPARATE = "separate outputs: none the same as, or inside, that of another step"
_FILES_IN_DIRECTORIES = ("*.json", "*.safetensors", "model/*")  # of a model, corpus or store


def input_files(step: Step) -> list[Path]:
    """The files that a step reads and that no other step writes.

    In a data directory, these are the files of the step's tasks; in a model's directory, weights and records.

    Raises:
        UserError: a file or directory does not exist, or a task is unknown.
    """
    paths = {path: None for key, value in step.raw.items() for path in _files_of_option(step, key, value)}
    return sorted(path for path in paths if path.is_file())


def at_current_paths(recorded: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    """The recorded inputs of a step, under their current paths if the job's directory was moved or renamed.

    Two paths are those of one file if its position relative to the pipeline is the same.

    Args:
        recorded: path -> digest, when the step ran.
        current: the same for the files that it would read now, in the directory of the pipeline.
    """
    moved = dict(recorded)
    for path, digest in current.items():
        if path in recorded or not os.path.isabs(path):
            continue
        position = "/" + os.path.relpath(path).replace("../", "")
        found = [old for old in moved if old not in current and old.endswith(position)]
        if found:
            moved[path] = moved.pop(min(found, key=lambda old: moved[old] != digest))
    return moved


def check_outputs(steps: Iterable[Step]) -> None:
    """Check that the outputs of steps are separate.

    Raises:
        UserError: two steps have the same output, or one output lies inside another one.
    """
    writers: dict[Path, Step] = {}
    for step in steps:
        other = writers.setdefault(real_path(step.out), step)
        if other is not step:
            raise UserError(
                f"step {step.name!r}: it writes {step.out}, and so does the step {other.name!r}",
                expected=_SEPARATE,
                hint="rename one of the steps, or set its `out`",
            )
    for path, step in writers.items():
        if outer := next((writers[folder] for folder in path.parents if folder in writers), None):
            raise UserError(
                f"step {step.name!r}: {step.out} lies inside {outer.out}, the output of the step "
                f"{outer.name!r}",
                expected=_SEPARATE,
                hint="set another `out` for one of them",
            )


def check_step_output(step: Step, pipeline: Path) -> None:
    """Raise UserError if a step's output would overwrite the pipeline or an input of the step."""
    folder = next((folder for folder in Path(step.out).parents if os.path.lexists(folder)), Path())
    if not folder.is_dir():
        raise UserError(f"{folder} is a file, so {step.out} cannot be written", hint="choose another `out`")
    inputs = {key: value for key, value in step.options.items() if key not in _OUTPUTS}
    refuse_overlap("out", Path(step.out), {"pipeline": pipeline, **inputs})


def _files_of_option(step: Step, key: str, value: Any) -> Iterable[Path]:
    """The files that the value of a step's option names; UserError if one is missing."""
    if key in _OUTPUTS or (key == "model" and str(value).startswith("http")):  # an endpoint
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
    if key == "text":
        files = [text for text in texts if not text.startswith("hub:")]
        return [path for text in files for path in _text_files(text)]
    if key == "set":
        encoder = value.get("student.transformer.init", "")
        return _files_at(key, encoder, False) if isinstance(encoder, str) and encoder else []
    if key == "unlabelled":
        return [path for text in texts for path in _unlabelled(text)]
    param = parameters(find_command(step.command))[key]
    must_exist = key in _DIRECTORIES or (isinstance(param.type, click.Path) and key not in _MODELS)
    if not must_exist and key not in _MODELS:
        return []
    return [path for text in texts for path in _files_at(key, text, must_exist)]


def _texts(value: Any) -> Iterator[str]:
    """The texts in an option's value, with local copies in place of URLs; of TASK=VALUE, only the value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield from (item.rpartition("=")[2].strip() for item in with_local_paths(value).split(","))


def _tasks(step: Step) -> list[Task]:
    """The tasks that a step names; commands on a trained model know only its tasks with task files here."""
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
    names = {_normalised(name) for task in tasks for name in (*known_as(task), task.trained_on or task.name)}
    files = [
        file
        for pattern in ("*/*", "*/*/*")
        for file in root.glob(pattern)
        if suffix_of(file) not in (None, ".json")
    ]
    return [
        file
        for file in files
        if not names or names & set(map(_normalised, file.relative_to(root).parent.parts))
    ]


def _normalised(name: str) -> str:
    """A name in lower case without punctuation, since GLUE's releases write stsb as STS-B."""
    return "".join(filter(str.isalnum, name.lower()))


def _unlabelled(text: str) -> list[Path]:
    """The files that a pattern matches; none for the name of a split. UserError if a file is missing."""
    files = matching_files([text], Path())
    if not files and (suffix_of(Path(text)) or "/" in text or "*" in text):
        raise _missing("unlabelled", text)
    return files


def _text_files(text: str) -> list[Path]:
    """The files of plain text at a path. UserError if there is none."""
    path = Path(text)
    if not path.exists():
        raise _missing("text", text)
    return [file for file in path.rglob("*") if suffix_of(file)] if path.is_dir() else [path]


def _files_at(key: str, text: str, must_exist: bool) -> list[Path]:
    """The files of a directory with a model, corpus or store; else the path itself, or a name on the hub.

    Raises:
        UserError: there is no such file, although `must_exist` is set or the text looks like a path.
    """
    path = Path(text)
    if path.is_dir():
        return [file for pattern in _FILES_IN_DIRECTORIES for file in path.glob(pattern)]
    is_path = path.is_absolute() or text.startswith(".") or ("/" in text and Path(path.parts[0]).exists())
    if not path.exists() and (must_exist or is_path):
        raise _missing(key, text)
    return [path]


def _missing(key: str, text: str) -> UserError:
    folder = Path(text).parent
    beside = [str(folder / entry.name) for entry in folder.iterdir()] if folder.is_dir() else []
    return UserError(
        f"`{key}={text!r}`: no such file or directory{did_you_mean(text, beside)}",
        hint=None
        if Path(text).is_absolute()
        else f"the path is relative to the pipeline, so it stands for {os.path.abspath(text)}",
    )


class Digests:
    """Digests of files; those of files that have not changed since an earlier call are reused.

    Args:
        recorded: path -> [size, time of the last change, digest], from an earlier call.

    Attributes:
        current: the same for the files of this call.
    """

    def __init__(self, recorded: dict[str, list[Any]]):
        self._recorded, self.current = recorded, dict[str, list[Any]]()

    def of(self, path: Path) -> str:
        """The digest of a file's bytes."""
        key, status = as_url(str(path)), path.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        if key not in self.current:
            record = self._recorded.get(key, [])
            self.current[key] = record if record[:2] == stamp else [*stamp, digest_file(path)]
        digest: str = self.current[key][2]
        return digest
