"""Resolving task names, groups of tasks and task files to `Task` objects."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from tasks.common.argument_markers import Expected
from tasks.common.errors import UserError, a_type, did_you_mean_path, unknown
from tasks.glue import TASKS
from tasks.task import Task

GROUPS: dict[str, tuple[str, ...]] = {
    group: tuple(name for name, task in TASKS.items() if group in task.groups)
    for group in ("glue", "mkd", "sentiment", "paraphrase", "similarity", "nli")
}


TaskSpec = Annotated[
    str | Path | Task | Sequence[str | Path | Task],
    Expected("names, groups, paths of TOML files, Task objects, or a list of these"),
]


def resolve(spec: TaskSpec, known: Iterable[Task] = (), data: Any = None) -> list[Task]:
    """The tasks that `spec` names, in order and without duplicates.

    Args:
        spec: comma-separated task names, groups ("glue", "nli", ...) and paths of task TOML files; or a
            sequence of these and of `Task` objects.
        known: more tasks that may be named, such as those of a model; they take precedence over built-in
            tasks.
        data: the data source of the tasks; if it is a directory, the error for an unknown name suggests the
            task files in it.

    Raises:
        UserError: a name is unknown, a file is missing or invalid, no task is named, or two different tasks
            have the same name.
    """
    chosen: dict[str, Task] = {}
    own_tasks = {task.name: task for task in known}
    for part in _parts(spec):
        for task in _tasks_of(part, own_tasks, data):
            if chosen.setdefault(task.name, task) != task:
                raise UserError(
                    f"two different tasks are called {task.name!r} in {describe(spec)!r}",
                    expected="one task per name",
                    hint="change `name` in the task's TOML file, or leave one of the two out",
                )
    if not chosen:
        raise UserError(
            f"no task is named in {spec!r}" if spec else "no task is named",
            expected=f"{', '.join(TASKS)}; groups: {', '.join(GROUPS)}; or a task's TOML file",
        )
    return list(chosen.values())


def task_words(spec: str) -> list[str]:
    """The words that name the single tasks of comma-separated ones; paths of task files stay paths."""
    names: list[str] = []
    for word in filter(None, map(str.strip, spec.split(","))):
        names += [word] if word.endswith(".toml") else [task.name for task in resolve(word)]
    return names


def refuse_group_name(where: Path | str, name: str) -> None:
    """Raise UserError if a task has the name of a group; `where`: start of the message, such as the file."""
    if name in GROUPS:
        raise UserError(
            f"{where}: name = {name!r} is a built-in group of tasks: {', '.join(GROUPS[name])}",
            hint="choose another name",
        )


def describe(spec: TaskSpec) -> str:
    """A task specification as text, in the form used on the command line."""
    return ",".join(part.name if isinstance(part, Task) else str(part) for part in _parts(spec))


def _parts(spec: TaskSpec) -> list[Any]:
    if isinstance(spec, str | Path | Task) or not isinstance(spec, Iterable):
        return [spec]
    return list(spec)


def _tasks_of(part: str | Path | Task, own_tasks: Mapping[str, Task], data: Any) -> list[Task]:
    if isinstance(part, Task):
        from tasks.task_file import check_task

        refuse_group_name("mtkd.Task", part.name)
        return [part if TASKS.get(part.name) == part else check_task(part)]
    if not isinstance(part, str | Path):
        raise UserError(
            f"a task cannot be {a_type(part)}", expected="a name, the path of a TOML file, or a Task"
        )
    words = [str(part)] if isinstance(part, Path) else [word.strip() for word in part.split(",")]
    return [task for word in words if word for task in _named(word, own_tasks, data)]


def task_files_near(word: str, data: Any = None) -> list[str]:
    """Files that may define the task that was meant.

    They are `word.toml`, here or in the directory `data`, or those in the directory `word`.
    """
    path = Path(word)
    places = [path, *([Path(data) / word] if isinstance(data, str | Path) else [])]
    # For any word, also "." or one that is too long for a file.
    if beside := [f"{place}.toml" for place in places if os.path.isfile(f"{place}.toml")]:
        return beside
    files = sorted(path.glob("*.toml"))[:50] if os.path.isdir(path) else []
    return [str(file) for file in files if file.name != "pipeline.toml"][:3]


def _named(word: str, own_tasks: Mapping[str, Task], data: Any) -> list[Task]:
    """The task or tasks that one word of the spec names."""
    if word in own_tasks:
        return [own_tasks[word]]
    if word.endswith(".toml"):
        from tasks.task_file import load_task

        return [load_task(Path(word))]
    if word in GROUPS:
        return [TASKS[name] for name in GROUPS[word]]
    if word not in TASKS:
        files = task_files_near(word, data)
        by_file = f"a task of your own is named by its file: {', '.join(files)}" if files else ""
        if os.path.isfile(word):
            by_file = f"this is a file; `mtkd.init_pipeline({word!r}, ...)` writes a task file for rows"
        elif Path(word).suffix and (near := did_you_mean_path(Path(word))):
            by_file = f"there is no file {word!r}{near}"
        if own_tasks:
            hint = by_file or "name one of its tasks, or a task's .toml file"
            raise unknown("task of this model", word, own_tasks, hint=hint)
        if word in (data if isinstance(data, Mapping) else getattr(data, "task_names", ())):
            hint = f"describe a task of your own, and pass it as `tasks`: `mtkd.Task(name={word!r}, ...)`"
        else:
            hint = by_file or "name a task, a group of tasks, or a task's .toml file"
        raise unknown("task", word, {**TASKS, **GROUPS}, hint=hint)
    return [TASKS[word]]
