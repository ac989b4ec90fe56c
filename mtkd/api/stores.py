"""Knowledge stores: `mtkd.plan_store`, `build_store`, `repair_store`, `store_info`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mtkd.api.argument_types import (
    Corpora,
    Engine,
    Model,
    Recipe,
    RecordedData,
    Settings,
    UnlabelledFiles,
)
from mtkd.api.training_request import paths_as_text, paths_of, saved_path
from mtkd.dtypes import Precision, StoreDtype
from mtkd.output_files.remote_paths import remote_paths
from mtkd.output_files.worker_pools import Workers
from tasks.common.argument_markers import Expected
from tasks.common.arguments import Bytes, NonNegativeInt, PositiveInt, checked
from tasks.common.errors import UserError, warn_caller
from tasks.common.text_format import parse_size
from tasks.task import Task
from tasks.task_names import TaskSpec, describe

if TYPE_CHECKING:
    from mtkd.jobs.knowledge_store.plan_store import StorePlan
    from mtkd.jobs.knowledge_store.store_request import StoreRequest
    from mtkd.knowledge_store.store_manifest import StoreManifest


_SIZE = "a number of bytes, or a size such as 2GB or 500M"
Budget = Annotated[Bytes | str, Expected(_SIZE)]
STORE_INPUTS = ("data", "tasks", "teacher", "corpus", "unlabelled", "settings")


@checked
@remote_paths(*STORE_INPUTS, out="out", uploads=False)
def plan_store(
    recipe: Recipe,
    *,
    data: RecordedData | None = None,
    tasks: TaskSpec,
    teacher: str | Path | Model,
    out: str | Path = ".",
    corpus: Corpora | None = None,
    limit: PositiveInt | None = None,
    unlabelled: UnlabelledFiles | None = None,
    unlabelled_limit: NonNegativeInt | None = None,
    settings: Settings | None = None,
    dtype: StoreDtype = "fp16",
    precision: Precision = "fp32",
    batch: PositiveInt = 32,
    budget: Budget | None = None,
) -> StorePlan:
    """Estimate the size of a store and the time to build it; nothing is written.

    Args:
        recipe: the recipe that the store is for.
        data: the source of the rows: "pocket", "hub" or a directory.
        tasks: names of tasks or task files.
        teacher: the teacher whose outputs are stored: a run of `refine` (or the model that it returned), or a
            pretrained encoder.
        out: the directory whose free disk space is checked.
        corpus: an augmented corpus, or a list of corpora, whose copies are also stored.
        limit: the maximum number of training rows per task.
        unlabelled, unlabelled_limit: files of unlabelled rows, and the maximum number of their rows per
            task (see `distill`); by default those of data and task files.
        settings: dotted setting -> value; overrides the recipe's.
        dtype: the data type of vectors on disk: "fp32", "fp16", "bf16" or "int8".
        precision: the precision in which the teacher runs: "fp32" or "bf16".
        batch: rows per forward pass of the teacher.
        budget: the maximum size, in bytes or as text such as "2GB"; depth, tokens and width of the hidden
            states are chosen to fit it.

    Raises:
        UserError: the recipe, data, teacher or corpus is invalid.
    """
    from mtkd.jobs.knowledge_store import plan_store as job

    request = store_request(
        recipe=recipe,
        data=data,
        tasks=tasks,
        teacher=teacher,
        corpus=corpus,
        limit=limit,
        unlabelled=unlabelled,
        unlabelled_limit=unlabelled_limit,
        settings=settings,
        dtype=dtype,
        precision=precision,
        batch=batch,
        budget=budget,
    )
    return job.plan_store(request, Path(out), warn_caller)


@checked
@remote_paths(*STORE_INPUTS, out="out")
def build_store(
    recipe: Recipe,
    *,
    data: RecordedData | None = None,
    tasks: TaskSpec,
    teacher: str | Path | Model,
    out: str | Path,
    corpus: Corpora | None = None,
    limit: PositiveInt | None = None,
    unlabelled: UnlabelledFiles | None = None,
    unlabelled_limit: NonNegativeInt | None = None,
    settings: Settings | None = None,
    dtype: StoreDtype = "fp16",
    precision: Precision = "fp32",
    batch: PositiveInt = 32,
    budget: Budget | None = None,
    workers: PositiveInt | None = None,
    engine: Engine = "processes",
    address: str | None = None,
    overwrite: bool = False,
    command: str = "mtkd.build_store(...)",
) -> StoreManifest:
    """Run the teacher on all rows, and store the outputs that the recipe needs.

    An unfinished store is resumed.

    Args:
        out: the directory of the store.
        workers: the number of processes, each of which loads the teacher; the output does not depend on it.
            By default 1, or with Ray one per GPU of the cluster (per CPU, if it has no GPUs).
        engine: where the processes run: "processes" = on this machine, sharing its GPU; "ray" = on a Ray
            cluster (docs/scale.md).
        address: the address of the Ray cluster; "auto" = the one on this machine; None = start one.
        overwrite: replace another store in `out`.
        command: the command line that the store's manifest records.
        recipe, data, tasks, teacher, corpus, limit, unlabelled, unlabelled_limit, settings, dtype, precision,
            batch, budget: see `plan_store`.

    Raises:
        UserError: see `plan_store`; also if `out` holds another store, or there is too little disk space.
    """
    from mtkd.jobs.knowledge_store import build_store as job

    processes = Workers(workers, engine, address)
    request = store_request(
        recipe=recipe,
        data=data,
        tasks=tasks,
        teacher=teacher,
        corpus=corpus,
        limit=limit,
        unlabelled=unlabelled,
        unlabelled_limit=unlabelled_limit,
        settings=settings,
        dtype=dtype,
        precision=precision,
        batch=batch,
        budget=budget,
    )
    return job.build_store(
        request, Path(out), command, workers=processes, overwrite=overwrite, warn=warn_caller
    )[0]


@checked
@remote_paths(out="store")
def repair_store(
    store: str | Path,
    *,
    workers: PositiveInt | None = None,
    engine: Engine = "processes",
    address: str | None = None,
) -> list[str]:
    """Rebuild only the damaged shards of a store.

    Args:
        workers, engine, address: see `build_store`.

    Returns:
        The files that were rebuilt.
    """
    from mtkd.jobs.knowledge_store import build_store as job

    processes = Workers(workers, engine, address)
    return job.repair_store(Path(store), processes)[1]


@checked
@remote_paths("store")
def store_info(store: str | Path) -> StoreManifest:
    """Read the manifest of a store: its teacher, its tasks and its size."""
    from mtkd.knowledge_store.store_manifest import read_store_manifest

    return read_store_manifest(Path(store))


def store_request(
    *,
    recipe: str,
    data: str | Path | None,
    tasks: TaskSpec,
    teacher: str | Path | Model,
    corpus: Corpora | None,
    limit: int | None,
    unlabelled: UnlabelledFiles | None,
    unlabelled_limit: int | None,
    settings: Settings | None,
    dtype: StoreDtype,
    precision: Precision,
    batch: int,
    budget: int | str | None,
) -> StoreRequest:
    """Convert the arguments of `plan_store` to a request for a store.

    Raises:
        UserError: `budget` is not a size, or `tasks` contains a task object, which has no name that a store
            could record.
    """
    from mtkd.jobs.knowledge_store.store_request import StoreRequest
    from mtkd.jobs.training_corpus import recorded_paths

    if isinstance(budget, str):
        try:
            budget = parse_size(budget)
        except ValueError as error:
            raise UserError(f"`budget={budget!r}` is not a size", expected=_SIZE) from error
    task_list = tasks if isinstance(tasks, list | tuple) else [tasks]
    if unnamed := [task.name for task in task_list if isinstance(task, Task)]:
        raise UserError(
            f"`tasks` holds the task object {unnamed[0]!r}, but a store records names",
            expected="names of tasks, or the paths of task files",
        )
    return StoreRequest(
        recipe=recipe,
        data=str(data) if data else None,
        tasks=describe(tasks),
        teacher=saved_path("teacher", teacher),
        sets=dict(settings or {}),
        corpus=recorded_paths(paths_of(corpus)),
        limit=limit,
        unlabelled=paths_as_text(unlabelled),
        unlabelled_limit=unlabelled_limit,
        dtype=dtype,
        precision=precision,
        batch=batch,
        budget=budget,
    )
