"""The contents of the files that `mtkd init` writes: task, pipeline, and rows that are in no file yet."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mtkd.pipelines.init_data import Part
from mtkd.pipelines.init_files import pipeline_text, task_text
from mtkd.pipelines.init_notes import probability_columns
from mtkd.pipelines.init_paragraphs import Paragraphs
from mtkd.pipelines.init_student import StudentPlan
from tasks.checks.split_report import unread_columns
from tasks.common.reading import real_path
from tasks.task import UNLABELLED, Task

PIPELINE = "pipeline.toml"


@dataclass(frozen=True)
class JobRows:
    """All rows of a job: the splits, the parts of the unlabelled rows, and paragraphs without questions."""

    splits: Mapping[str, Part]
    unlabelled: Sequence[Part]
    paragraphs: Paragraphs | None

    @property
    def used_in_place(self) -> set[Path]:
        """The files that the task file or the pipeline names; the rows of others are copied."""
        parts = [*self.splits.values(), *self.unlabelled]
        parts += [self.paragraphs.part] if self.paragraphs else []
        return {real_path(part.path) for part in parts if part.path}

    @property
    def counts(self) -> dict[str, int]:
        """Split -> number of rows, with `unlabelled` and `paragraphs` if there are any."""
        counts = {split: len(part.raw.table) for split, part in self.splits.items()}
        if self.unlabelled:
            counts[UNLABELLED] = sum(len(part.raw.table) for part in self.unlabelled)
        if self.paragraphs:
            counts["paragraphs"] = len(self.paragraphs.part.raw.table)
        return counts


def file_contents(out: Path, task: Task, rows: JobRows, length: int, plan: StudentPlan) -> dict[str, bytes]:
    """The name of each file in `out` -> its contents.

    Args:
        length: `max_length` of the models.
    """
    contents: dict[str, bytes] = {}

    def path_of(name: str, part: Part) -> str:
        """The file of a part, relative to `out` if it is in or beside it; rows without a file are copied."""
        if part.path is not None:
            return path_from(out, part.path)
        unread = set(unread_columns(task, part.raw)) - set(probability_columns(task, part.raw))
        sink = pa.BufferOutputStream()
        pq.write_table(part.raw.table.drop_columns(sorted(unread)), sink)
        contents[f"{task.name}-{name}.parquet"] = sink.getvalue().to_pybytes()
        return f"{task.name}-{name}.parquet"

    files = {split: path_of(split, part) for split, part in rows.splits.items()}
    unlabelled = [
        path_of(f"{UNLABELLED}-{n}" if n else UNLABELLED, part) for n, part in enumerate(rows.unlabelled)
    ]
    paragraphs = None
    if found := rows.paragraphs:
        paragraphs = path_of("paragraphs", found.part), found.column
    contents[f"{task.name}.toml"] = task_text(task, files).encode()
    contents[PIPELINE] = pipeline_text(task, length, unlabelled, plan, paragraphs).encode()
    return contents


def path_from(out: Path, path: Path) -> str:
    """A path relative to `out` if it is in or beside it, else absolute."""
    relative = os.path.relpath(real_path(path), real_path(out))
    return relative if relative.count("..") < 2 else str(real_path(path))
