"""Argument types of the public functions, which `tasks.common.arguments.checked` checks.

At run time, stand-ins replace the classes whose modules import torch, so that functions that do not need
torch do not import it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from mtkd.output_files.worker_pools import Engine as Engine
from tasks.common.argument_checks import lazy_class
from tasks.common.argument_markers import Expected, IsPath
from tasks.common.arguments import Device as Device

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import Pipeline

    from mtkd.api.model import Model
    from mtkd.losses.loss_term import LossTerm
    from mtkd.losses.term_settings import TermSettings
    from mtkd.models.multitask import MultiTaskModel
    from mtkd.train_settings import TrainSettings
    from mtkd.training.callbacks import Callback

    Pair: TypeAlias = tuple[Module, Any]
else:
    Pair = tuple  # its contents are checked where it is used
    Module = lazy_class("torch.nn", "Module")
    Pipeline = lazy_class("transformers.pipelines.base", "Pipeline")
    Model = lazy_class("mtkd.api.model", "Model")
    LossTerm = lazy_class("mtkd.losses.loss_term", "LossTerm")
    TermSettings = lazy_class("mtkd.losses.term_settings", "TermSettings")
    MultiTaskModel = lazy_class("mtkd.models.multitask", "MultiTaskModel")
    TrainSettings = lazy_class("mtkd.train_settings", "TrainSettings")
    Callback = lazy_class("mtkd.training.callbacks", "Callback")

# A directory, a hub name, a model, or a pair of a transformers model and its tokeniser.
AnyModel: TypeAlias = Annotated[
    str | Path | Model | MultiTaskModel | Pair | Pipeline,
    Expected(
        "a directory or name, a model, a transformers pipeline, or a pair (transformers model, fast "
        "tokeniser)"
    ),
]
Teachers: TypeAlias = Annotated[
    AnyModel | Sequence[AnyModel] | Mapping[str, AnyModel | Sequence[AnyModel]],
    Expected(
        "a directory or name, a model, a transformers pipeline, a pair (transformers model, fast tokeniser), "
        'or a mapping such as {"sst2": teacher}'
    ),
]
ModelsByName: TypeAlias = Annotated[
    Mapping[str, AnyModel | Sequence[AnyModel]],
    Expected(
        'a mapping from names to a model or a list of models, such as {"student": ["runs/0", "runs/1"]}'
    ),
]
Student: TypeAlias = Annotated[
    Model | MultiTaskModel | Module,
    Expected(
        "a loaded model or an encoder, not a name or a path",
        "load a run with mtkd.load('DIR') (not an export, which cannot be trained), or start the recipe's "
        "student from it with `init='DIR'`",
    ),
]
Losses = Annotated[
    Mapping[str, LossTerm | TermSettings | Mapping[str, Any]]
    | Sequence[LossTerm | TermSettings | Mapping[str, Any]],
    Expected(
        "a list of objects whose classes extend mtkd.LossTerm or of settings such as "
        '{"loss": "logits_mse", "weight": 0.5}, or a mapping from names to these'
    ),
]
Callbacks = Annotated[Sequence[Callback], Expected("a list of objects whose classes extend mtkd.Callback")]
Recipe = Annotated[str, IsPath(), Expected("the name of a recipe, or the path of a .toml file")]
Settings = Annotated[
    Mapping[str, Any], Expected('a mapping of settings, such as {"train.weight_decay": 0.1}')
]
Unlabelled = Annotated[
    Mapping[str, Any], Expected('a mapping from tasks to rows or files, such as {"sst2": "more.csv"}')
]
UnlabelledFiles = Annotated[
    Mapping[str, str | Path | Sequence[str | Path]],
    Expected(
        'a mapping from tasks to files, such as {"sst2": "more.csv"}',
        "write rows in memory to a file: only names of files can be recorded",
    ),
]
RecordedData = Annotated[
    str | Path,
    Expected(
        "pocket, hub or a directory",
        "write rows in memory to a directory TASK/SPLIT.parquet, or into the files of a task file: "
        "only names can be recorded",
    ),
]
Corpora = Annotated[
    str | Path | Sequence[str | Path], Expected("the directory of a corpus, or a list of such directories")
]
