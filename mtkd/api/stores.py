"""Knowledge stores: `mtkd.plan_store`, `build_store`, `repair_store`, `store_info`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mtkd.api.argument_types import (
    Dtype,
    Engine,
    Model,
    Precision,
    Recipe,
    RecordedData,
    Settings,
    UnlabelledFiles,
)
from mtkd.api.training_request import model_or_path, paths_as_text
from mtkd.output_files.remote_paths import remote_paths
from mtkd.output_files.worker_pools import Workers
from tasks.common.arguments import Bytes, NonNegativeInt, PositiveInt, checked
from tasks.common.errors import UserError, warn_caller
from tasks.task import Task
from tasks.task_names import TaskSpec, describe

if TYPE_CHECKING:
    from mtkd.jobs.knowledge_store.plan_store import StorePlan, StoreRequest
    from mtkd.knowledge_store.store_manifest import StoreManifest


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
    corpus: str | Path | None = None,
    limit: PositiveInt | None = None,
    unlabelled: UnlabelledFiles | None = None,
    unlabelled_limit: NonNegativeInt | None = None,
    settings: Settings | None = None,
    dtype: Dtype = "fp16",
    precision: Precision = "fp32",
    batch: PositiveInt = 32,
    budget: Bytes | None = None,
) -> StorePlan:
    """How large a store would be and how long the teacher would take; nothing is written.

    Args:
        recipe: whose needs the store serves.
        data, tasks: of which rows ("pocket", "hub" or a directory; names or task files).
        teacher: whose knowledge: a run of `refine` (or the model that it returned), or a pretrained encoder.
        out: the directory whose disk is looked at.
        corpus: an augmented corpus whose copies are stored too.
        limit: the maximum number of training rows per task.
        unlabelled, unlabelled_limit: files of rows without labels, and the maximum number of their rows per
            task (see `distill`); by default those of data and task files.
        settings: dotted setting -> value, over the recipe's.
        dtype: of vectors on disk: "fp32", "fp16", "bf16" or "int8"; precision: of the teacher while it runs.
        batch: rows that the teacher reads at once.
        budget: bytes; depth, tokens and width of the hidden states are then chosen to fit.

    Raises:
        UserError: anything wrong with recipe, data, teacher or corpus.
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
    corpus: str | Path | None = None,
    limit: PositiveInt | None = None,
    unlabelled: UnlabelledFiles | None = None,
    unlabelled_limit: NonNegativeInt | None = None,
    settings: Settings | None = None,
    dtype: Dtype = "fp16",
    precision: Precision = "fp32",
    batch: PositiveInt = 32,
    budget: Bytes | None = None,
    workers: PositiveInt | None = None,
    engine: Engine = "processes",
    address: str | None = None,
    overwrite: bool = False,
    command: str = "mtkd.build_store(...)",
) -> StoreManifest:
    """Run the teacher over all rows and keep what the recipe needs; an unfinished store is resumed.

    Args:
        out: where the store goes; overwrite: drop another store that is there.
        workers: processes that each load the teacher, 1 by default; the output does not depend on their
            number.
        engine: "processes" on this machine, which share its GPU; or "ray" for a Ray cluster, by default one
            process for each of its GPUs or, if it has none, CPUs (docs/scale.md).
        address: of the Ray cluster; "auto" = the one on this machine; None = start one.
        command: how the store's manifest says it was made.
        others: as for `plan_store`.

    Raises:
        UserError: as `plan_store`; another store is in `out`; too little space.
    """
    from mtkd.jobs.knowledge_store import build_store as job

    made_by = Workers(workers, engine, address)
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
        request, Path(out), command, workers=made_by, overwrite=overwrite, warn=warn_caller
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
    """Rebuild the damaged shards of a store, and nothing else; the files that were rebuilt.

    Args:
        workers, engine, address: see `build_store`.
    """
    made_by = Workers(workers, engine, address)
    from mtkd.jobs.knowledge_store import build_store as job

    return job.repair_store(Path(store), made_by)[1]


@checked
@remote_paths("store")
def store_info(store: str | Path) -> StoreManifest:
    """What a store holds: of which teacher, of which rows, how much."""
    from mtkd.knowledge_store.store_manifest import read_store_manifest

    return read_store_manifest(Path(store))


def store_request(
    *,
    recipe: str,
    data: str | Path | None,
    tasks: TaskSpec,
    teacher: str | Path | Model,
    corpus: str | Path | None,
    limit: int | None,
    unlabelled: UnlabelledFiles | None,
    unlabelled_limit: int | None,
    settings: Settings | None,
    dtype: Dtype,
    precision: Precision,
    batch: int,
    budget: int | None,
) -> StoreRequest:
    """What a store is asked to hold, from the arguments of `plan_store`."""
    from mtkd.jobs.knowledge_store.plan_store import StoreRequest

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
        teacher=str(model_or_path(teacher)),
        sets=dict(settings or {}),
        corpus=str(corpus) if corpus else None,
        limit=limit,
        unlabelled=paths_as_text(unlabelled),
        unlabelled_limit=unlabelled_limit,
        dtype=dtype,
        precision=precision,
        batch=batch,
        budget=budget,
    )
