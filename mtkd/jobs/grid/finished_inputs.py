"""Whether the finished runs of a grid were trained on the rows and models that the grid is given now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from mtkd.jobs.grid.grid_jobs import Job
from mtkd.models.saved_model import digest_model, is_saved_model, read_saved
from mtkd.training.run_directory import RUN_FILE
from mtkd.training.run_record import read_run_record
from tasks.common.errors import UserError
from tasks.data.loading import digest_rows, load_rows
from tasks.data.sources import open_data
from tasks.task import Task


def check_finished_inputs(jobs: Iterable[Job], data: str | Sequence[str]) -> None:
    """Check that the inputs of finished runs have not changed: the table would show scores of earlier ones.

    The rows of training and validation splits are compared, and teachers and models on this disk. Rows that
    cannot be read any more are not, and neither are rows without labels nor those of a corpus.

    Args:
        data: that of the grid.

    Raises:
        UserError: names the run, and what has changed.
    """
    source = open_data(data or None)
    digests: dict[tuple[str, ...], str | None] = {}
    digest_of_model = cache(digest_model)

    def changed_rows(task: Task, split: str, limit: int | None, before: str) -> bool:
        key = task.name, split, str(limit)
        if key not in digests:
            try:
                digests[key] = digest_rows(load_rows(source, task, split, limit))
            except UserError:  # the finished runs are worth their table all the same
                digests[key] = None
        return digests[key] not in (before, None)

    for job in jobs:
        if not job.finished:
            continue
        record = read_run_record(job.out / RUN_FILE)
        recorded, identity = record.get("data"), record["identity"]
        rows = recorded if isinstance(recorded, dict) else {}
        for task in read_saved(job.out).tasks if rows else ():
            limits = dict.fromkeys(task.validation, identity.get("eval_limit"))
            if task.train and not record.get("corpus"):  # whose rows are among the training rows
                limits[task.train] = identity.get("limit")
            for split, limit in limits.items():
                name = f"{task.name}/{split}"
                if name in rows and changed_rows(task, split, limit, rows[name]):
                    raise _changed(job, f"the rows of {name}")
        for role in ("teacher", "model"):
            before, place = record.get(role), job.option(role)
            if before and place and is_saved_model(Path(place)) and digest_of_model(Path(place)) != before:
                raise _changed(job, f"the {role} {place}")


def _changed(job: Job, what: str) -> UserError:
    return UserError(
        f"{what} changed after the run in {job.out} was finished",
        expected="the inputs with which this comparison was started",
        hint="give another `out`, or remove this directory to train the run again",
    )
