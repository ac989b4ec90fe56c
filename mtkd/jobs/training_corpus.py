"""The rows of an augmented corpus that a run trains on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mtkd.models.multitask import MultiTaskModel
from tasks.common.errors import UserError, counted
from tasks.data.corpus_reader import CorpusTask, corpus_rows, read_corpus
from tasks.data.loading import digest_blocks, digest_rows, sample_rows
from tasks.data.rows import Rows, concat
from tasks.data.sources import DataSource
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import Task


def question_tasks(corpus: Path, tasks: Sequence[Task]) -> list[str]:
    """The names of the tasks of a corpus of generated questions; empty for a corpus of augmented copies.

    Raises:
        UserError: the corpus has questions, but for none of `tasks`.
    """
    manifest = read_corpus(corpus)
    if manifest.kind != "questions":
        return []
    names = [entry.name for entry in manifest.tasks]
    if not set(names) & {task.name for task in tasks}:
        raise UserError(
            f"the corpus {corpus} has questions for {', '.join(names)}, but the run trains on "
            f"{', '.join(task.name for task in tasks)}",
            hint="add its task to `tasks`, or make questions for another task: "
            "`mtkd.augment.generate_questions(task='TASK', ...)`",
        )
    return names


def add_corpus(
    corpus: Path,
    source: DataSource,
    tasks: Sequence[Task],
    task: Task,
    split: Rows,
    train: Rows,
    unlabelled: UnlabelledRequest | None,
) -> Rows:
    """The training rows of a task, followed by rows of the corpus: questions, or copies as in `add_copies`.

    Args:
        tasks: all tasks of the run.

    Raises:
        UserError: as for `question_tasks` and `add_copies`.
    """
    if names := question_tasks(corpus, tasks):
        return concat([train, corpus_rows(corpus, task.name)]) if task.name in names else train
    return add_copies(corpus, source, task, split, train, unlabelled)


def add_copies(
    corpus: Path,
    source: DataSource,
    task: Task,
    split: Rows,
    train: Rows,
    unlabelled: UnlabelledRequest | None,
) -> Rows:
    """The training rows, followed by the augmented copies of these and of the unlabelled rows of the run.

    In a task whose rows are candidates in groups, the copies of a group with the same copy number form a
    group.

    Args:
        split: all rows of the training split.
        train: those of them that the run uses.
        unlabelled: which unlabelled rows it uses; None = none.

    Raises:
        UserError: the corpus lacks the task, or was made from other rows.
    """
    manifest = read_corpus(corpus)
    entry = manifest.task(task.name)
    requested = unlabelled if unlabelled and unlabelled.limit != 0 and entry.unlabelled else None
    digest = digest_blocks if manifest.format > 1 else digest_rows
    _check_origin(corpus, entry, source, task, split, requested, digest)
    parents = requested.append(source, task, train)[0] if requested else train
    copies = corpus_rows(corpus, task.name)
    row_by_uid = {uid: row for row, uid in enumerate(parents.uids.to_pylist())}
    # A copy's uid is "<uid of its parent>#<copy number>".
    parent_rows = np.array([row_by_uid.get(uid.rpartition("#")[0], -1) for uid in copies.uids.to_pylist()])
    copies, parent_rows = copies.take(np.flatnonzero(parent_rows >= 0)), parent_rows[parent_rows >= 0]
    if parents.groups is not None:
        copy_numbers = np.array([int(uid.rpartition("#")[2]) for uid in copies.uids.to_pylist()])
        n_groups = int(parents.groups.max()) + 1
        copies = replace(copies, groups=parents.groups[parent_rows] + copy_numbers * n_groups)
    return concat([train, copies]) if len(copies) else train


def _check_origin(
    corpus: Path,
    entry: CorpusTask,
    source: DataSource,
    task: Task,
    split: Rows,
    requested: UnlabelledRequest | None,
    digest: Callable[[Rows], str],
) -> None:
    """Raise UserError unless a corpus was made from these training rows and the requested unlabelled rows."""
    origin = sample_rows(split, entry.source_rows - entry.unlabelled)
    if entry.unlabelled:
        origin = replace(origin, soft=None)  # as in the corpus, since unlabelled rows have no soft labels
    if digest(origin) != entry.source_digest:
        raise UserError(
            f"the corpus {corpus} was not made from the {task.name} rows of {source.name!r}",
            hint="make one from them: "
            f"`mtkd.augment.mask(data={source.name!r}, tasks={task.name!r}, out='DIR')`",
        )
    if requested is None:
        return
    with_unlabelled, _ = replace(requested, limit=entry.unlabelled).append(source, task, origin)
    if digest(with_unlabelled.slice(len(origin), len(with_unlabelled))) != entry.unlabelled_digest:
        raise UserError(
            f"the corpus {corpus} has copies of {counted(entry.unlabelled, 'unlabelled row')} of "
            f"{task.name}, but the run uses other unlabelled rows, or none",
            hint="pass the same `unlabelled` as when the corpus was made, or leave out unlabelled rows and "
            "their copies with `unlabelled_limit=0`",
        )


def check_mask(corpus: Path, models: Mapping[str, MultiTaskModel | None]) -> None:
    """Check that the mask token of a corpus is that of the models.

    Args:
        models: role ("teacher", "student") -> model.

    Raises:
        UserError: a model has another mask token.
    """
    token = read_corpus(corpus).settings.get("mask_token")
    for role, model in models.items():
        if model and token is not None and model.tokeniser.mask_token != token:
            raise UserError(
                f"the corpus {corpus} masks words with {token!r}, but the mask token of the {role} is "
                f"{model.tokeniser.mask_token!r}",
                hint=f"make the corpus with `mask_token={model.tokeniser.mask_token!r}`",
            )
