"""The rows that a corpus is made from: loaded here, or left in their files for the workers to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from augment.augmenter import Augmenter, works_row_by_row
from mtkd.output_files.worker_pools import WorkerPool, Workers
from tasks.common.progress import Advance
from tasks.common.sha256 import digest_bytes
from tasks.data.file_rows import FileRows, RowsInFiles, plan_file_rows, validate_and_digest
from tasks.data.loading import digest_blocks, require_no_errors
from tasks.data.rows import Rows
from tasks.data.sources import DataSource
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import Task

SourceRows: TypeAlias = Rows | RowsInFiles


def plan_source_rows(
    augmenter: Augmenter,
    source: DataSource,
    tasks: Sequence[Task],
    limit: int | None,
    unlabelled: UnlabelledRequest,
    workers: Workers,
) -> dict[str, FileRows]:
    """Task -> its training rows, for those tasks whose rows this process need not read (docs/scale.md)."""
    can_plan = works_row_by_row(augmenter) or getattr(augmenter, "reads_files", False)
    if limit is not None or not workers.in_other_processes or not can_plan:
        return {}
    planned = {}
    for task in tasks:
        assert task.train is not None, "only trainable tasks have copies"
        rows = plan_file_rows(source, task, task.train)
        if rows and unlabelled.open(source, task) is None:
            planned[task.name] = rows
    return planned


def validate_source_rows(rows: FileRows, pool: WorkerPool, source: DataSource, advance: Advance) -> FileRows:
    """The rows with their digest, after other processes have validated them.

    Args:
        advance: called with the number of rows that have just been validated.

    Raises:
        UserError: a row is invalid (the message is that of `tasks.data.loading.load_rows`), or a file has
            changed.
    """
    pieces = rows.split_for_workers(2 * pool.size)
    checked = pool.map(validate_and_digest, pieces)
    digests = []
    what = f"{rows.task.name}/{rows.split}"
    for piece, part in zip(
        pieces, require_no_errors(checked, what, source.check_hint(rows.task)), strict=True
    ):
        digests += part
        advance(len(piece))
    return replace(rows, digest=digest_bytes(*digests))


def content_digests(rows: SourceRows, n_unlabelled: int) -> tuple[str, str]:
    """The digests of the labelled rows and of the last `n_unlabelled` rows, without labels ("": none)."""
    if isinstance(rows, RowsInFiles):
        if not rows.digest or n_unlabelled:
            raise ValueError("validate rows in files first; they cannot include unlabelled rows")
        return rows.digest, ""
    n_labelled = len(rows) - n_unlabelled
    unlabelled_digest = digest_blocks(rows.slice(n_labelled, len(rows))) if n_unlabelled else ""
    return digest_blocks(rows.slice(0, n_labelled)), unlabelled_digest
