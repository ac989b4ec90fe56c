"""How a Transformer student starts: its sizes, checked against those of the encoder it starts from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtkd.losses.layer_maps import spread
from mtkd.models.encoders.pretrained_config import (
    DEFAULT_TEACHER,
    TransformerConfig,
    factorised,
    pretrained_config,
    size_name,
    with_sizes,
)
from mtkd.models.init import InitContext, InitSpec
from tasks.errors import UserError

if TYPE_CHECKING:
    from mtkd.models.encoders.transformer import TransformerSettings


def source_name(wanted: TransformerSettings, base: str | None) -> str:
    """The pretrained encoder that a student starts from."""
    return (base or DEFAULT_TEACHER) if wanted.init in ("base", "random", "teacher") else wanted.init


def require_teacher_vocabulary(wanted: TransformerSettings, context: InitContext) -> None:
    """Pretrained layers need the vocabulary that they were trained with.

    Raises:
        UserError: the student has one of its own.
    """
    if context.own_vocabulary and wanted.init in ("base", "teacher"):
        raise UserError(
            "the student's vocabulary is not the teacher's, so its layers cannot start from pretrained ones",
            hint="`student.vocabulary=wordpiece`, or `student.transformer.init=random`",
        )


def taken_layers(wanted: TransformerSettings, layers: int, there: int) -> list[int]:
    """Which layers, from 1, of the encoder it starts from a student takes.

    Raises:
        UserError: a layer that is not there, or another number of layers than the student has.
    """
    if not isinstance(wanted.take, list):
        return [teacher for _, teacher in spread(wanted.take, layers, there)]
    if len(wanted.take) != layers or not all(1 <= layer <= there for layer in wanted.take):
        raise UserError(
            f"student.transformer.take={wanted.take} for a student of {layers} layers",
            expected=f"{layers} layers from 1 to {there}",
        )
    return wanted.take


def student_transformer(wanted: TransformerSettings, init_spec: InitSpec) -> TransformerConfig:
    """The student's configuration: that of what it starts from, in the sizes that are asked for."""
    if (wanted.prune and wanted.init != "teacher") or (wanted.take == "importance" and not wanted.prune):
        raise UserError(
            f"student.transformer.prune={str(wanted.prune).lower()} with init={wanted.init!r}, "
            f"take={wanted.take!r}",
            expected="prune=true with init=teacher, and take=importance only then",
            hint="`student.transformer.init=teacher`",
        )
    source = init_spec.teacher
    if wanted.init not in ("teacher", "random") or source is None:
        if wanted.init == "teacher":
            raise UserError(
                "student.transformer.init=teacher needs a Transformer teacher; there is none",
                hint="pass `teacher=DIR` of a refined Transformer, or `student.transformer.init=base`",
            )
        source = pretrained_config(source_name(wanted, init_spec.base))
    if not isinstance(source, TransformerConfig):
        raise UserError(
            f"student.transformer.init={wanted.init} needs a Transformer teacher; this one is a BiLSTM",
            hint="pass `teacher=DIR` of a refined Transformer, or `student.transformer.init=base`",
        )
    sizes = {
        "num_hidden_layers": wanted.layers,
        "hidden_size": wanted.hidden_size,
        "num_attention_heads": wanted.heads,
        "intermediate_size": wanted.intermediate_size,
        "hidden_dropout_prob": wanted.dropout,
        "attention_probs_dropout_prob": wanted.dropout,
    }
    config = with_sizes(source, **{name: size for name, size in sizes.items() if size is not None})
    if wanted.prune:
        there = source.shape
        kept = {"head_size": there.attention // there.heads, "embedding_rank": wanted.embedding_size}
        config = config.model_copy(update=kept)
    elif wanted.embedding_size is not None:
        config = factorised(config, wanted.embedding_size)
    config = config.model_copy(update={"pooling": wanted.pooling})
    hf = config.build_hf()
    if hf.hidden_size % hf.num_attention_heads:
        raise UserError(
            f"a student {hf.hidden_size} wide cannot have {hf.num_attention_heads} attention heads",
            expected="a number of heads that divides the width",
            hint="`student.transformer.heads=N`, or another student.transformer.hidden_size",
        )
    if wanted.init != "random":
        _refuse_other_sizes(wanted, config, source)
    return config


def _refuse_other_sizes(
    wanted: TransformerSettings, config: TransformerConfig, source: TransformerConfig
) -> None:
    """Weights can only be copied between encoders of one width; layers and heads may differ."""
    student, there = config.build_hf(), source.build_hf()
    width, feed_forward = "hidden_size", size_name(there, "intermediate_size")
    names = {"width": width, "feed-forward width": feed_forward, "embedding rank": "embedding_size"}
    if wanted.prune:
        names = {"width": width}
        _refuse_more(config, source, feed_forward)
    differs = [
        f"{words} {getattr(student, name, None)} (there {getattr(there, name, None)})"
        for words, name in names.items()
        if getattr(student, name, None) != getattr(there, name, None)
    ]
    if differs or student.num_hidden_layers > there.num_hidden_layers:
        differs = differs or [f"layers {student.num_hidden_layers} (there {there.num_hidden_layers})"]
        raise UserError(
            f"a student that starts from {wanted.init!r} cannot have {', '.join(differs)}",
            expected="the sizes of what it starts from, with as many layers or fewer",
            hint="change student.transformer.* to these sizes, or `student.transformer.init=random`",
        )


def _refuse_more(config: TransformerConfig, source: TransformerConfig, feed_forward: str) -> None:
    """A pruned student has no more of anything than its teacher."""
    student, there = config.build_hf(), source.build_hf()
    for words, count, most in (
        ("attention heads", config.shape.heads, source.shape.heads),
        ("feed-forward units", getattr(student, feed_forward), getattr(there, feed_forward)),
        ("embedding rank", config.embedding_rank or 0, source.shape.width),
    ):
        if count > most:
            raise UserError(
                f"a student that is cut out of its teacher cannot have {words} {count}",
                expected=f"up to {most}",
            )
