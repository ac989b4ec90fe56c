"""Bi-encoders, which read the two texts of a row separately: which encoders can, and for which tasks."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from mtkd.models.encoders.pretrained_config import (
    POOLING,
    PairEncoding,
    TransformerConfig,
    locate,
    own_config,
)
from tasks.common.errors import UserError, unknown
from tasks.common.hub_loading import find_file
from tasks.task import Task

BI_ENCODER_POOLINGS = ("cls", "mean")
# MPNet does not use the attention interface of transformers, but also accepts a mask per pair of tokens. Its
# relative positions within one text are the same as in that text alone.
ACCEPTS_PAIR_MASK = ("mpnet",)


def compares_sentences(name: str) -> bool:
    """True if an encoder was trained to compare sentence vectors.

    These are the encoders of sentence-transformers, and bi-encoders that mtkd trained.
    """
    config = own_config(locate(name))
    return config.pairs != "cross-encoder" if config else find_file(locate(name), POOLING) is not None


def bi_encoder_for(names: Iterable[str], tasks: Iterable[Task]) -> PairEncoding:
    """The value of `pairs` by which a bi-encoder reads some tasks, and a cross-encoder the others.

    Args:
        names: the names of these tasks, or of their heads.
        tasks: all tasks of the run.

    Raises:
        UserError: a name is not the name of a task with two texts, or it is a span task.
    """
    pairs = [task for task in tasks if len(task.columns) == 2 and not task.type.predicts_spans]
    heads = {name: task.head for task in pairs for name in (task.head, task.name)}
    for name in names:
        if name not in heads:
            raise unknown("task that a bi-encoder can read", name, {task.name for task in pairs})
    return sorted({heads[name] for name in names}) or "cross-encoder"


def can_be_bi_encoder(config: TransformerConfig) -> bool:
    """True if an encoder can read two texts side by side; see `require_bi_encoder`."""
    return config.pooling in BI_ENCODER_POOLINGS and _accepts_mask_and_positions(config)


def require_bi_encoder(config: TransformerConfig) -> None:
    """Check that an encoder can read two texts side by side.

    Raises:
        UserError: its family does not accept an attention mask per pair of tokens and position ids, or its
            pooling is neither `cls` nor `mean`.
    """
    if not _accepts_mask_and_positions(config):
        raise UserError(
            f"encoders of the family {config.build_hf().model_type!r} cannot be a bi-encoder here",
            expected="BERT, RoBERTa, XLM-R, ELECTRA, ALBERT, MPNet and encoders built like them",
            hint="use `settings={'pairs': 'cross-encoder'}`",
        )
    if config.pooling not in BI_ENCODER_POOLINGS:
        raise UserError(
            f"a bi-encoder cannot use pooling={config.pooling}",
            expected="cls or mean",
            hint="use `settings={'pooling': 'mean'}` or `settings={'pairs': 'cross-encoder'}`",
        )


def _accepts_mask_and_positions(config: TransformerConfig) -> bool:
    """True if the encoders of the family accept an attention mask per pair of tokens, and position ids."""
    from transformers import MODEL_MAPPING

    hf_config = config.build_hf()
    body: Any = MODEL_MAPPING.get(type(hf_config), None)
    takes_positions = "position_ids" in inspect.signature(body.forward).parameters
    takes_mask = (
        getattr(body, "_supports_attention_backend", False) or hf_config.model_type in ACCEPTS_PAIR_MASK
    )
    return takes_positions and takes_mask
