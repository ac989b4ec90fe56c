"""mtkd: distil large language-understanding models into small fast ones, for many tasks at once.

    import mtkd

    tasks = ["rte", "sst2"]
    teacher = mtkd.refine("minilm", data="pocket", tasks=tasks, out="runs/teacher")
    student = mtkd.distill("layerwise-3", teacher=teacher, data="pocket", tasks=tasks, out="runs/student")
    student.predict("rte", [("A man sleeps.", "A man rests.")])

The names below are the public surface; they are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "LOGITS",
    "Callback",
    "Encoder",
    "EncoderConfig",
    "EncoderOutput",
    "EncoderSpec",
    "LossTerm",
    "Model",
    "MtkdWarning",
    "OutputSpec",
    "StudentSettings",
    "Task",
    "TermInput",
    "TermSettings",
    "TrainSettings",
    "UserError",
    "__version__",
    "augment",
    "bench_inference",
    "build_store",
    "check_data",
    "compare",
    "compare_models",
    "distill",
    "evaluate",
    "export",
    "finetune",
    "glue_submission",
    "init_pipeline",
    "list_grids",
    "list_recipes",
    "list_tasks",
    "load",
    "losses",
    "plan_store",
    "predict",
    "pull",
    "push",
    "refine",
    "repair_store",
    "report_html",
    "report_knowledge",
    "report_plot",
    "run_pipeline",
    "show_recipe",
    "store_info",
    "suggest_students",
    "verify",
]

_MODULES = {
    "mtkd.api.distillation": ("distill",),
    "mtkd.api.training": (
        "finetune",
        "refine",
    ),
    "mtkd.api.exporting": ("export",),
    "mtkd.api.hub": ("pull", "push"),
    "mtkd.api.grid_runs": ("compare",),
    "mtkd.api.stores": (
        "build_store",
        "plan_store",
        "repair_store",
        "store_info",
    ),
    "mtkd.api.model": ("Model",),
    "mtkd.api.model_comparison": ("compare_models",),
    "mtkd.api.load_model": ("load",),
    "mtkd.api.inference_timing": ("bench_inference",),
    "mtkd.api.measurement": (
        "evaluate",
        "glue_submission",
        "predict",
        "verify",
    ),
    "mtkd.api.reporting": (
        "report_html",
        "report_knowledge",
        "report_plot",
    ),
    "mtkd.api.suggesting": ("suggest_students",),
    "mtkd.api.catalogue": (
        "check_data",
        "list_grids",
        "list_recipes",
        "list_tasks",
        "show_recipe",
    ),
    "mtkd.pipelines.init_pipeline": ("init_pipeline",),
    "mtkd.pipelines.run": ("run_pipeline",),
    "mtkd.losses.loss_term": (
        "LossTerm",
        "TermInput",
    ),
    "mtkd.losses.term_settings": ("TermSettings",),
    "mtkd.models.encoders.encoder": (
        "Encoder",
        "EncoderConfig",
        "StudentSettings",
    ),
    "mtkd.train_settings": ("TrainSettings",),
    "mtkd.training.callbacks": ("Callback",),
    "mtkd.outputs": (
        "LOGITS",
        "EncoderOutput",
        "EncoderSpec",
        "OutputSpec",
    ),
    "tasks.common.errors": ("MtkdWarning", "UserError"),
    "tasks.task": ("Task",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "augment":
        return importlib.import_module("mtkd.api.augmentation")
    if name == "losses":
        return importlib.import_module("mtkd.losses")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'mtkd' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    from mtkd import losses
    from mtkd.api import augmentation as augment
    from mtkd.api.catalogue import check_data, list_grids, list_recipes, list_tasks, show_recipe
    from mtkd.api.distillation import distill
    from mtkd.api.exporting import export
    from mtkd.api.grid_runs import compare
    from mtkd.api.hub import pull, push
    from mtkd.api.inference_timing import bench_inference
    from mtkd.api.load_model import load
    from mtkd.api.measurement import evaluate, glue_submission, predict, verify
    from mtkd.api.model import Model
    from mtkd.api.model_comparison import compare_models
    from mtkd.api.reporting import report_html, report_knowledge, report_plot
    from mtkd.api.stores import build_store, plan_store, repair_store, store_info
    from mtkd.api.suggesting import suggest_students
    from mtkd.api.training import finetune, refine
    from mtkd.losses.loss_term import LossTerm, TermInput
    from mtkd.losses.term_settings import TermSettings
    from mtkd.models.encoders.encoder import Encoder, EncoderConfig, StudentSettings
    from mtkd.outputs import LOGITS, EncoderOutput, EncoderSpec, OutputSpec
    from mtkd.pipelines.init_pipeline import init_pipeline
    from mtkd.pipelines.run import run_pipeline
    from mtkd.train_settings import TrainSettings
    from mtkd.training.callbacks import Callback
    from tasks.common.errors import MtkdWarning, UserError
    from tasks.task import Task
