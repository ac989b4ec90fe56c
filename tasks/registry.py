"""From what a user types after `--tasks` to task records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tasks.errors import UserError, unknown
from tasks.glue import TASKS
from tasks.task import Task

GROUPS: dict[str, tuple[str, ...]] = {
    group: tuple(name for name, task in TASKS.items() if group in task.groups)
    for group in ("glue", "mkd", "sentiment", "paraphrase", "nli")
}


def resolve(spec: str, known: Iterable[Task] = ()) -> list[Task]:
    """The tasks that `spec` names, in the order written, each once.

    Args:
        spec: task names, groups ("glue", "nli", ...) and paths to tasks' TOML files, comma-separated.
        known: tasks that may also be named, such as those of a model; they come before built-in ones.

    Raises:
        UserError: a name is not known, a file is missing or wrong, nothing is named, or two different
            tasks bear one name.
    """
    chosen: dict[str, Task] = {}
    own = {task.name: task for task in known}
    for word in filter(None, (part.strip() for part in spec.split(","))):
        for task in _named(word, own):
            if chosen.setdefault(task.name, task) != task:
                raise UserError(
                    f"two different tasks are called {task.name!r} in {spec!r}",
                    expected="one task a name",
                    hint="change `name` in the task's TOML file, or leave one of the two out",
                )
    if not chosen:
        raise UserError(
            f"no task is named in {spec!r}",
            expected=f"{', '.join(TASKS)}; groups: {', '.join(GROUPS)}; or a task's TOML file",
        )
    return list(chosen.values())


def _named(word: str, own: dict[str, Task]) -> list[Task]:
    """The task or tasks that one word of the spec stands for."""
    if word in own:
        return [own[word]]
    if word.endswith(".toml"):
        from tasks.task_file import load_task
        from tasks.task_types import check_metrics

        task = load_task(Path(word))
        check_metrics(task)
        return [task]
    if word in GROUPS:
        return [TASKS[name] for name in GROUPS[word]]
    if word not in TASKS:
        raise unknown(
            "task",
            word,
            {**own, **TASKS, **GROUPS},
            hint="name a task, a group of tasks, or a task's .toml file",
        )
    return [TASKS[word]]
