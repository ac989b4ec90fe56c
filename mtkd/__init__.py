"""mtkd: distil large language-understanding models into small fast ones, for many tasks at once.

    import mtkd

    teacher = mtkd.refine("minilm", data="pocket", tasks=["rte", "sst2"], out="runs/teacher")
    student = mtkd.distill("mkd-lstm", teacher=teacher, data="pocket", tasks=["rte", "sst2"], out="runs/student")
    student.predict("rte", [("A man sleeps.", "A man rests.")])

The names below are the public surface; they are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    # jobs
    "refine": "mtkd.api.training",
    "distill": "mtkd.api.training",
    "finetune": "mtkd.api.training",
    "compare": "mtkd.api.grid_runs",
    "plan_store": "mtkd.api.stores",
    "build_store": "mtkd.api.stores",
    "repair_store": "mtkd.api.stores",
    "store_info": "mtkd.api.stores",
    "verify_store": "mtkd.api.stores",
    # models
    "load": "mtkd.api.model",
    "Model": "mtkd.api.model",
    "evaluate": "mtkd.api.measurement",
    "predict": "mtkd.api.measurement",
    "glue_submission": "mtkd.api.measurement",
    "bench_inference": "mtkd.api.measurement",
    "report_knowledge": "mtkd.api.measurement",
    # what there is
    "list_tasks": "mtkd.api.catalogue",
    "list_recipes": "mtkd.api.catalogue",
    "list_grids": "mtkd.api.catalogue",
    "show_recipe": "mtkd.api.catalogue",
    "check_data": "mtkd.api.catalogue",
    # parts
    "Task": "tasks.task",
    "TrainSettings": "mtkd.settings",
    "Callback": "mtkd.training.callbacks",
    "LossTerm": "mtkd.losses.base",
    "TermInput": "mtkd.losses.base",
    "UserError": "tasks.errors",
    "MtkdWarning": "mtkd.api.training",
}

__all__ = ["__version__", "augment", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name == "augment":
        return importlib.import_module("mtkd.api.augmentation")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mtkd' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    from mtkd.api import augmentation as augment
    from mtkd.api.catalogue import check_data, list_grids, list_recipes, list_tasks, show_recipe
    from mtkd.api.grid_runs import compare
    from mtkd.api.measurement import bench_inference, evaluate, glue_submission, predict, report_knowledge
    from mtkd.api.model import Model, load
    from mtkd.api.stores import build_store, plan_store, repair_store, store_info, verify_store
    from mtkd.api.training import MtkdWarning, distill, finetune, refine
    from mtkd.losses.base import LossTerm, TermInput
    from mtkd.settings import TrainSettings
    from mtkd.training.callbacks import Callback
    from tasks.errors import UserError
    from tasks.task import Task
