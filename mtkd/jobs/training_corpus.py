"""The rows of augmented corpora that a run trains on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from mtkd.models.multitask import MultiTaskModel
from tasks.common.errors import UserError, counted
from tasks.common.sha256 import digest_bytes
from tasks.data.corpus_reader import CorpusManifest, CorpusTask, corpus_rows, read_corpus
from tasks.data.loading import digest_blocks, digest_rows, sample_rows
from tasks.data.rows import Rows, concat
from tasks.data.sources import DataSource
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import Task


def recorded_paths(corpora: Sequence[Path]) -> str | list[str] | None:
    """The paths of corpora as they are recorded: text for one, a list for several, None for none."""
    paths = [str(corpus) for corpus in corpora]
    return paths if len(paths) > 1 else next(iter(paths), None)


def corpora_key(corpora: Sequence[Path]) -> str | None:
    """The key of a corpus, or a digest of the keys of several; None if there is none."""
    keys = [read_corpus(corpus).key for corpus in corpora]
    return digest_bytes("+".join(keys)) if len(keys) > 1 else keys[0] if keys else None


def add_corpora(
    corpora: Sequence[Path],
    source: DataSource,
    tasks: Sequence[Task],
    task: Task,
    split: Rows,
    train: Rows,
    unlabelled: UnlabelledRequest | None,
) -> tuple[Rows, dict[str, int]]:
    """Add the rows that corpora have for a task to its training rows.

    These are questions, or the augmented copies of the training rows and of the unlabelled rows of the run.
    Nothing is added to tasks that no corpus has.

    Args:
        tasks: all tasks of the run.
        split: all rows of the training split.
        train: those of them that the run uses.
        unlabelled: which unlabelled rows it uses; None = none.

    Returns:
        The training rows, followed by those of the corpora; and the number of rows of each kind ("copies",
        "questions") that were added.

    Raises:
        UserError: a corpus has rows for none of `tasks`, or was made from other rows of this task.
    """
    parts, counts = [train], dict[str, int]()
    keys: set[str] = set()
    for corpus in corpora:
        manifest = read_corpus(corpus)
        if manifest.key in keys:
            raise UserError(
                f"the corpus {corpus} is given twice, or is a copy of another one",
                hint="name each corpus once",
            )
        keys.add(manifest.key)
        _check_tasks(corpus, manifest, tasks)
        if task.name not in (entry.name for entry in manifest.tasks):
            continue
        if manifest.kind == "questions":
            added = corpus_rows(corpus, task.name)
        else:
            added = _copies(corpus, source, task, split, train, unlabelled)
        counts[manifest.kind] = counts.get(manifest.kind, 0) + len(added)
        if len(added):
            parts.append(_distinct(added, parts))
    return concat(parts), counts


def _check_tasks(corpus: Path, manifest: CorpusManifest, tasks: Sequence[Task]) -> None:
    """Raise UserError if a corpus has rows for none of the tasks of a run."""
    names = [entry.name for entry in manifest.tasks]
    if not set(names) & {task.name for task in tasks}:
        function = "generate_questions(task" if manifest.kind == "questions" else "mask(tasks"
        raise UserError(
            f"the corpus {corpus} has {manifest.kind} for {', '.join(names)}, but the run trains on "
            f"{', '.join(task.name for task in tasks)}",
            hint=f"add its task to `tasks`, or make {manifest.kind} for another task: "
            f"`mtkd.augment.{function}='TASK', ...)`",
        )


def _distinct(rows: Rows, earlier: Sequence[Rows]) -> Rows:
    """Rows of a corpus with other uids and groups than those of earlier corpora, which may be equal.

    Args:
        earlier: the training rows, then the rows of earlier corpora.
    """
    if len(earlier) == 1:
        return rows
    uids = pc.binary_join_element_wise(rows.uids, f"corpus {len(earlier)}", "#")
    groups = rows.groups
    if groups is not None:
        groups = groups + 1 + max(int(part.groups.max()) for part in earlier if part.groups is not None)
    return replace(rows, uids=uids, groups=groups)


def _copies(
    corpus: Path,
    source: DataSource,
    task: Task,
    split: Rows,
    train: Rows,
    unlabelled: UnlabelledRequest | None,
) -> Rows:
    """The augmented copies of the training rows and of the unlabelled rows of a run; see `add_corpora`.

    In a task whose rows are candidates in groups, the copies of a group with the same copy number form a
    group.
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
    return copies


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
            f"the corpus {corpus} was not made from the {task.name} rows of {source.described}",
            hint=f"make one from them: `mtkd.augment.mask({source.arguments(task)}, out='DIR')`",
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


def check_masks(corpora: Sequence[Path], role: str, model: MultiTaskModel | None) -> None:
    """Check that the mask token of corpora is that of a model.

    Args:
        role: "teacher" or "student", for the message.

    Raises:
        UserError: the model has another mask token.
    """
    for corpus in corpora if model else ():
        token = read_corpus(corpus).settings.get("mask_token")
        if model and token is not None and model.tokeniser.mask_token != token:
            raise UserError(
                f"the corpus {corpus} masks words with {token!r}, but the mask token of the {role} is "
                f"{model.tokeniser.mask_token!r}",
                hint=f"make the corpus with `mask_token={model.tokeniser.mask_token!r}`",
            )
