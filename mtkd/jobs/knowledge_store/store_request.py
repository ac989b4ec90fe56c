"""What a knowledge store is to hold: the arguments for planning and building it."""

from __future__ import annotations

import glob
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from mtkd.dtypes import StoreDtype
from tasks.common.records import Count, Record, Size


@dataclass(frozen=True)
class StoreRequest(Record):
    """The arguments for building a store.

    Attributes:
        recipe, sets: the recipe that will use the store, and overrides of its settings.
        data, tasks, limit, corpus: the training rows whose outputs are stored.
        unlabelled, unlabelled_limit: the unlabelled rows; see `tasks.data.unlabelled.UnlabelledRequest`.
        teacher: the teacher whose outputs are stored.
        dtype: the number format of the vectors on disk.
        precision: the precision in which the teacher runs.
        batch: rows per batch of the teacher.
        budget: the maximum size in bytes, to which the recipe's depth, tokens and width are fitted; None = as
            in the recipe.
    """

    recipe: str
    data: str | None
    tasks: str
    teacher: str
    sets: dict[str, Any] = field(default_factory=dict)
    corpus: str | list[str] | None = None
    limit: Size | None = None
    unlabelled: dict[str, str | list[str]] = field(default_factory=dict)
    unlabelled_limit: Count | None = None
    dtype: StoreDtype = "fp16"
    precision: Literal["fp32", "bf16"] = "fp32"
    batch: Size = 32
    budget: Count | None = None

    @property
    def corpora(self) -> list[str]:
        """The corpora as a list, which is empty if there are none."""
        return [self.corpus] if isinstance(self.corpus, str) else self.corpus or []

    def options(self) -> dict[str, Any]:
        """The request as JSON values with absolute paths, so that a repair can run in any directory."""

        def absolute(name: str | None) -> str | None:
            return str(Path(name).resolve()) if name and Path(name).exists() else name

        def absolute_file(name: str) -> str:
            # Only with a suffix, since a directory may have the name of a task or recipe.
            return str(absolute(name)) if name.endswith(".toml") else name

        paths: dict[str, Any] = {key: absolute(getattr(self, key)) for key in ("data", "teacher")}
        paths["corpus"] = (
            [absolute(path) for path in self.corpus]
            if isinstance(self.corpus, list)
            else absolute(self.corpus)
        )
        paths["recipe"] = absolute_file(self.recipe)
        paths["tasks"] = ",".join(absolute_file(name.strip()) for name in self.tasks.split(","))
        files = {
            task: [_absolute_pattern(f) for f in file] if isinstance(file, list) else _absolute_pattern(file)
            for task, file in self.unlabelled.items()
        }
        return asdict(self) | paths | {"unlabelled": files}


def _absolute_pattern(pattern: str) -> str:
    """A file pattern as an absolute path; the name of a split is returned unchanged."""
    return str(Path(pattern).resolve()) if glob.glob(pattern) else pattern
