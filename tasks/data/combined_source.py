"""A data source that consists of other sources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.common.errors import UserError
from tasks.data.sources import DataSource, ReadBatches, ReadSplit
from tasks.task import Task


class CombinedSource(DataSource):
    """Several sources; each split of a task is read from the first source that has it."""

    def __init__(self, sources: Sequence[DataSource]):
        self._sources = list(sources)
        self.name = " + ".join(source.name for source in sources)

    def arguments(self, task: Task) -> str:
        return f"data=..., tasks={task.name!r}"

    def check_hint(self, task: Task) -> str:
        """How to list all problems of a task's data."""
        return f"`mtkd.check_data` lists all problems of {task.name!r}"

    def missing(self, task: Task, split: str) -> UserError:
        """The error for a split that no source has, with the hints of all sources."""
        error = super().missing(task, split)
        hints = [hint for source in self._sources if (hint := source.missing(task, split).hint)]
        return UserError(error.problem, expected=error.expected, hint="; ".join(dict.fromkeys(hints)))

    def _folders(self) -> list[Path]:
        return [folder for source in self._sources for folder in source._folders()]

    def _find_in_source(self, task: Task, split: str) -> ReadSplit | None:
        return next((read for source in self._sources if (read := source._find(task, split))), None)

    def _find(self, task: Task, split: str) -> ReadSplit | None:
        return self._find_in_source(task, split)

    def unlabelled(self, task: Task, named: bool = False) -> ReadBatches | None:
        return next((read for source in self._sources if (read := source.unlabelled(task, named))), None)
