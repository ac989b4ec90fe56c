"""A data source that reads a directory of files."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from tasks.common.errors import shorten
from tasks.common.reading import real_path
from tasks.common.remote import with_local_paths
from tasks.common.urls import as_url
from tasks.data.file_readers import READERS, SplitFiles
from tasks.data.glue_release import find_release, read_release
from tasks.data.missing_data import similar_split
from tasks.data.sources import DataSource, ReadBatches, ReadSplit, at_once, known_as, read_all_batches
from tasks.task import UNLABELLED, Task

_SUFFIXES = tuple(suffix for suffix in READERS if suffix not in (".tsv", ".txt", ".json"))


class DirectorySource(DataSource):
    """Reads the splits of tasks from a directory of files.

    For each split, the first of these that exists is read (DIR is the directory, T the task):

    1. T/<split> under DIR/glue, then under DIR: .parquet, the hub's shards <split>-00000-of-00001.parquet,
       .jsonl, .json-lines, .csv;
    2. GLUE's original release (CoLA/train.tsv, MNLI/dev_matched.tsv, ...) under DIR, then under DIR/glue;
    3. a copy of the data set on the hub (xnli/de/validation.parquet for xnli/validation_de), files as in 1.

    T is first the task's name and then its configuration on the hub, so that a task that extends `qnli`
    under another name finds the files of `qnli`.

    T/<split> takes precedence over a file outside DIR that the task itself names for this split, and is read
    if the task names other files, but none for this split.
    """

    root: Path

    def __init__(self, root: Path):
        self.name, self.root = as_url(str(root)), root

    def _find_in_source(self, task: Task, split: str) -> ReadSplit | None:
        for name in known_as(task):
            for parent in (self.root / "glue" / name, self.root / name):
                if read := _locate_file(parent, split, task):
                    return read
        for name in known_as(task):
            for parent in (self.root, self.root / "glue"):
                if path := find_release(parent, name, split):
                    return at_once(partial(read_release, path, name, split))
        if (hub_name := task.on_hub(split)) and split in task.splits:
            dataset, configuration, hub_split = hub_name
            return _locate_file(self.root / dataset.rpartition("/")[2] / configuration, hub_split, task)
        return None

    def _find(self, task: Task, split: str) -> ReadSplit | None:
        if task.files and not (split in task.files and self._is_inside(task.files[split])):
            for parent in (self.root / "glue" / task.name, self.root / task.name):
                if read := _locate_file(parent, split, task):
                    return read
        return super()._find(task, split)

    def _is_inside(self, file: str) -> bool:
        """True for a path inside this directory, and for every relative path, which starts there."""
        path = Path(with_local_paths(file))
        return not path.is_absolute() or real_path(path).is_relative_to(real_path(self.root))

    def outside_warning(self, splits: Iterable[tuple[Task, str]]) -> str | None:
        missing, paths = [], []
        for task, split in splits:
            files = self.split_files(task, split)
            if files is None or self._is_inside(str(files.paths[0])):
                return None
            missing.append(f"{task.name}/{split}.csv")
            paths.append(files.display_path)
        if not missing:
            return None
        return (
            f"{self.name} has no {shorten(missing)} (or .parquet, .jsonl), so these rows were read from "
            f"{shorten(paths)}, which the task names"
        )

    def unlabelled(self, task: Task, named: bool = False) -> ReadBatches | None:
        if task.unlabelled:
            return super().unlabelled(task)
        for name in known_as(task):
            for parent in (self.root / "glue" / name, self.root / name):
                if paths := _split_files(parent, UNLABELLED):
                    return partial(read_all_batches, paths, task)
        return None

    def _search_hint(self, task: Task, split: str) -> str:
        if task.files:
            return super()._search_hint(task, split)
        name = task.trained_on if task.trained_on and split == task.train else known_as(task)[-1]
        suffixes = "|".join(suffix.removeprefix(".") for suffix in _SUFFIXES)
        looked = (
            f"looked for glue/{name}/{split}.({suffixes}), {name}/... and GLUE's original files in "
            f"{self.name}"
        )
        for folder in (self.root / parent / name for parent in ("glue", "") for name in known_as(task)):
            files = {file.stem: file for suffix in _SUFFIXES for file in folder.glob(f"*{suffix}")}
            if near := similar_split(split, files):
                return f"rename {files[near]} to {split}{files[near].suffix}"
        return looked


def _split_files(parent: Path, split: str) -> list[Path]:
    """The file of a split in a directory, or its shards; empty if there is none."""
    for suffix in (*_SUFFIXES, *((".txt",) if split == UNLABELLED else ())):
        path = parent / f"{split}{suffix}"
        if path.is_file():
            return [path]
        shards = sorted(parent.glob(f"{split}-*-of-*.parquet")) if suffix == ".parquet" else []
        if shards:
            return shards
    return []


def _locate_file(parent: Path, split: str, task: Task) -> ReadSplit | None:
    """What reads the file of a split in a directory, or its shards; None if there is none."""
    paths = _split_files(parent, split)
    if not paths:
        return None
    label = None if paths[0].stem == split else str(parent / f"{split}-*.parquet")
    return SplitFiles(paths, task.columns, label)
