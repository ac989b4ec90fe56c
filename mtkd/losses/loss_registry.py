"""All losses by name: those of mtkd and those of installed plugins."""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from typing import Literal

from mtkd.losses.loss_term import LossTerm
from tasks.common.errors import unknown
from tasks.common.plugins import load_plugin, load_plugins

PLUGINS = "mtkd.losses"  # the entry point group

# The name that recipes use -> the file in this package and the class. A file is imported only when one of its
# losses is used, because the loss files import this file to suggest other losses in error messages.
BUILT_IN = {
    "attention_kl": "attention.AttentionKL",
    "cls_mse": "hidden.ClsMSE",
    "decoupled_logits": "decoupled.DecoupledLogits",
    "hidden_cosine": "hidden.HiddenCosine",
    "hidden_knowledge": "hidden_knowledge.HiddenKnowledge",
    "hidden_mse": "hidden.HiddenMSE",
    "labels": "logits.Labels",
    "logits_mse": "logits.LogitsMSE",
    "pooled_hidden_mse": "pooled.PooledHiddenMSE",
    "pooled_attention_score_mse": "pooled.PooledAttentionScoreMSE",
    "relation": "relations.Relation",
    "sample_contrastive": "contrastive.SampleContrastive",
    "sample_similarity": "relations.SampleSimilarity",
    "attention_score_mse": "attention.AttentionScoreMSE",
    "soft_labels": "logits.SoftLabels",
    "token_similarity": "relations.TokenSimilarity",
}


def find_loss(name: str) -> type[LossTerm] | None:
    """The class of a loss, or None if there is no loss of that name.

    Raises:
        UserError: an installed package registers the loss, but it cannot be loaded.
    """
    if name in BUILT_IN:
        file, _, class_name = BUILT_IN[name].partition(".")
        loss: type[LossTerm] = getattr(import_module(f"mtkd.losses.{file}"), class_name)
        return loss
    return _plugin(name)


def loss_class(name: str) -> type[LossTerm]:
    """The class of a loss.

    Raises:
        UserError: there is no loss of that name, or it is a plugin that cannot be loaded.
    """
    loss = find_loss(name)
    if loss is None:
        raise unknown("loss", name, loss_classes())
    return loss


def loss_classes() -> dict[str, type[LossTerm]]:
    """All losses by name: mtkd's, then those of plugins."""
    return {name: loss_class(name) for name in BUILT_IN} | _plugins()


def losses_for(attribute: Literal["works_without_layers", "works_with_strides"]) -> str:
    """List the losses for which an attribute of LossTerm holds, for error messages."""
    names = []
    for name, loss in loss_classes().items():
        fits = getattr(loss, attribute)
        if isinstance(fits, dict):
            needed = (f"{key} = {json.dumps(value)}" for key, value in fits.items())
            names.append(f"{name} (with {', '.join(needed)})")
        elif fits:
            names.append(name)
    return ", ".join(names)


@cache
def _plugin(name: str) -> type[LossTerm] | None:
    return load_plugin(PLUGINS, name, LossTerm)  # type: ignore[type-abstract]


@cache
def _plugins() -> dict[str, type[LossTerm]]:
    return load_plugins(PLUGINS, BUILT_IN, LossTerm)  # type: ignore[type-abstract]
