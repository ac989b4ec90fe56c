"""Check that the finished runs of a grid were trained on the rows and models that the grid is given now."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mtkd.jobs.grid.grid_jobs import GridInputs, Job
from mtkd.jobs.training_corpus import add_corpora
from mtkd.knowledge_store.store_manifest import read_store_manifest
from mtkd.models.encoders.pretrained_config import digest_encoder
from mtkd.models.saved_model import digest_model, is_saved_model, read_saved
from mtkd.run_record import RUN_FILE, read_run_record
from mtkd.teachers.find_teachers import find_teachers
from mtkd.teachers.teacher_names import teachers_by_task
from tasks.common.errors import UserError
from tasks.data.corpus_reader import read_corpus
from tasks.data.loading import digest_rows, load_rows, sample_rows
from tasks.data.plain_text import TextFiles
from tasks.data.sources import open_data
from tasks.data.training_rows import training_rows
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import UNLABELLED, Task

_OTHER_ROWS = "other rows than those that the corpus was made from"  # instead of a digest


def check_finished_inputs(jobs: Iterable[Job], inputs: GridInputs) -> None:
    """Check that the inputs of finished runs have not changed, since the table shows scores of these runs.

    Compared are the rows of all splits, unlabelled rows, plain text, corpora, knowledge stores, and teachers
    and models on this disk. Inputs that can no longer be read are skipped.

    Raises:
        UserError: an input has changed; the message names it and the run.
    """
    current = _CurrentInputs(inputs)
    for job in jobs:
        if not job.finished:
            continue
        record = read_run_record(job.out / RUN_FILE)
        for what, before, digests in current.inputs_of(job, record):
            if before and digests and before not in digests:
                raise UserError(
                    f"{what} changed after the run in {job.out} was finished",
                    expected="the inputs with which this comparison was started",
                    hint="give another `out`, or remove this directory to train the run again",
                )


def check_same_commands(jobs: Iterable[Job]) -> None:
    """Check that finished runs were trained with the commands that the comparison would start now.

    Raises:
        UserError: the options of runs have changed; the message names their directories.
    """
    listed = list(jobs)
    changes = {job.out: change for job in listed if (change := job.changed_options)}
    if not changes:
        return
    folders = _whole_folders(changes, [job.out for job in listed])
    out, change = next(iter(changes.items()))
    several = len(changes) > 1
    raise UserError(
        f"{out} holds a run with other options: {change}"
        + (f"; in all, {len(changes)} runs have other options, in {', '.join(map(str, folders))}" * several),
        expected="the options with which this comparison was started",
        hint="give another `out`, or remove "
        + ("these directories to train the runs" if several else "this directory to train the run")
        + " again",
    )


def _whole_folders(changed: Iterable[Path], runs: Sequence[Path]) -> list[Path]:
    """The directories of changed runs; that of the cell in place of those of all its runs."""
    every = set(changed)
    cells = {out.parent: {run for run in runs if run.parent == out.parent} for out in every}
    return sorted(
        {out.parent if len(cells[out.parent]) > 1 and cells[out.parent] <= every else out for out in every}
    )


class _CurrentInputs:
    """The digests of the inputs that a grid is given now, each computed once."""

    def __init__(self, inputs: GridInputs):
        self._source = open_data(inputs.data or None)
        self._unlabelled = UnlabelledRequest.of_files(inputs.unlabelled, inputs.unlabelled_limit)
        self._labels_of_teacher = inputs.labels_of_teacher
        self._results: dict[tuple[Any, ...], Any] = {}

    def inputs_of(self, job: Job, record: Mapping[str, Any]) -> Iterator[tuple[str, Any, Sequence[Any]]]:
        """Each input of a finished run as (name, recorded digest, digests that the current input may have).

        There are no current digests if the input can no longer be read.
        """
        tasks = read_saved(job.out).tasks
        for role, digest in (
            ("corpus", lambda path: [read_corpus(path).key]),
            ("store", lambda path: [read_store_manifest(path).key]),
            ("model", lambda path: [digest_model(path)] if is_saved_model(path) else []),
            ("encoder", lambda path: [digest_encoder(str(path))] if path.is_dir() else []),
        ):
            if path := job.option(role):
                digests = self._cached((role, path), digest, Path(path))
                yield f"the {role} {path}", record.get(role), digests or ()
        if teacher := job.option("teacher"):
            key = ("teacher", teacher, *(task.name for task in tasks))
            yield (
                f"the teacher {teacher}",
                record.get("teacher"),
                self._cached(key, self._teacher, teacher, tasks) or (),
            )
        rows = record.get("data")
        if isinstance(rows, str) and (text := job.option("text")):
            files = self._cached(("text", text), TextFiles.open, Path(text))
            yield f"the text {text}", rows, [files.digest] if files else ()
        elif isinstance(rows, dict):
            yield from self._row_digests(job, record["identity"], tasks, rows)

    def _row_digests(
        self, job: Job, identity: Mapping[str, Any], tasks: Sequence[Task], before: Mapping[str, str]
    ) -> Iterator[tuple[str, str | None, Sequence[str]]]:
        """The inputs of `inputs_of` that are rows of tasks; `before`: "task/split" -> recorded digest."""
        corpus, limit, eval_limit = job.option("corpus"), identity.get("limit"), identity.get("eval_limit")
        for task in tasks:
            digests: dict[str, str] = {}
            key: tuple[Any, ...]
            for split in task.validation:
                key = (task.name, split, eval_limit)
                digests |= self._cached(key, self._validation_rows, task, split, eval_limit) or {}
            if task.train:
                unlabelled = f"{task.name}/{UNLABELLED}" in before
                options = (limit, corpus, unlabelled)
                key = (task.name, task.train, *options)
                digests |= self._cached(key, self._training_rows, task, tasks, *options) or {}
            for name, digest in digests.items():
                yield f"the rows of {name}", before.get(name), [digest]

    def _validation_rows(self, task: Task, split: str, limit: int | None) -> dict[str, str]:
        return {f"{task.name}/{split}": digest_rows(load_rows(self._source, task, split, limit))}

    def _training_rows(
        self, task: Task, tasks: Sequence[Task], limit: int | None, corpus: str | None, with_unlabelled: bool
    ) -> dict[str, str]:
        """The digests of the rows that `load_training_data` would read; unlabelled rows have their own."""
        assert task.train is not None, "the caller checks"
        name = f"{task.name}/{task.train}"
        unlabelled = self._unlabelled if with_unlabelled else None
        split = training_rows(self._source, task, unlabelled)
        rows = sample_rows(split, limit)
        if corpus:
            # These two raise an error if the corpus or the unlabelled rows can no longer be read.
            read_corpus(Path(corpus))
            _ = unlabelled and unlabelled.open(self._source, task)
            try:
                rows, _ = add_corpora([Path(corpus)], self._source, tasks, task, split, rows, unlabelled)
            except UserError:
                return {name: _OTHER_ROWS}
        digests = {name: digest_rows(rows)}
        with contextlib.suppress(UserError):
            rows, added = unlabelled.append(self._source, task, rows) if unlabelled else (rows, 0)
            if added:
                digests[f"{task.name}/{UNLABELLED}"] = digest_rows(rows.slice(len(rows) - added, len(rows)))
        return digests

    def _teacher(self, teachers: str, tasks: Sequence[Task]) -> list[str]:
        """The digests of teachers on this disk, with task heads and as encoders without heads."""
        if not all(Path(teacher).is_dir() for _, teacher in teachers_by_task(teachers)):
            return []
        digests: list[str] = []
        for heads, labels in ((True, self._labels_of_teacher(tasks)), (False, None)):
            with contextlib.suppress(UserError):
                teacher = find_teachers(teachers, tasks, heads, labels)
                digests += [teacher.digest] if teacher and teacher.digest else []
        return digests

    def _cached(self, key: tuple[Any, ...], compute: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `compute`, computed once per key; None if it raises a UserError."""
        if key not in self._results:
            self._results[key] = None
            with contextlib.suppress(UserError):  # the table of the finished runs is still useful
                self._results[key] = compute(*arguments)
        return self._results[key]
