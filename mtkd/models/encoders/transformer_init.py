"""The initialisation of Transformer students: the encoder that they start from, and checks of their sizes."""

from __future__ import annotations

from functools import partial
from typing import Any

from mtkd.losses.layer_maps import named_map_pairs
from mtkd.models.encoders.bi_encoders import can_be_bi_encoder, require_bi_encoder
from mtkd.models.encoders.pretrained_config import (
    TransformerConfig,
    factorised,
    locate,
    pooler_option,
    pretrained_config,
    size_name,
    with_sizes,
)
from mtkd.models.encoders.transformer_settings import TransformerSettings
from mtkd.models.initialisation import InitContext, InitSpec
from mtkd.models.pretrained_weights import find_weights
from tasks.common.errors import UserError, counted
from tasks.common.hub_loading import DEFAULT_ENCODER, load_named
from tasks.tokens.tokeniser import Tokeniser

_NO_NAMES = ("encoder", "random", "teacher")  # the values of `init` that do not name an encoder


def source_name(settings: TransformerSettings, encoder: str | None) -> str:
    """The name of the pretrained encoder from which a student starts, or takes its sizes."""
    assert isinstance(settings.init, str), "`first_available` comes first"
    return (encoder or DEFAULT_ENCODER) if settings.init in _NO_NAMES else settings.init


def has_other_vocabulary(name: str, init_spec: InitSpec) -> bool:
    """True if an encoder's tokeniser has other tokens or token ids than the teacher's.

    Without a teacher, students read the tokens of the default encoder. False if one of the two tokenisers
    cannot be loaded, for example because the teacher has not been trained yet.
    """
    load_tokeniser = init_spec.load_tokeniser or partial(Tokeniser.load, locate(DEFAULT_ENCODER))
    try:
        return Tokeniser.load(locate(name)).hf.get_vocab() != load_tokeniser().hf.get_vocab()
    except UserError:
        return False


def first_available(
    settings: TransformerSettings, init_spec: InitSpec, *, reads_own_tokens: bool
) -> tuple[TransformerSettings, list[str]]:
    """The settings with the first entry of `init` that the student can start from, if `init` is a list.

    Args:
        reads_own_tokens: True if the student uses the tokeniser of this encoder, instead of the teacher's.

    Returns:
        The settings, and a warning if this is not the first entry.

    Raises:
        UserError: the student can start from none of them.
    """
    if isinstance(settings.init, str):
        return settings, []
    reasons: list[str] = []
    for name in settings.init:
        chosen = settings.model_copy(update={"init": name})
        try:
            _require_available(chosen, name, init_spec, reads_own_tokens=reads_own_tokens)
            break
        except UserError as error:
            if name == settings.init[-1]:
                problem = "; ".join([*reasons, error.problem])
                raise UserError(problem, expected=error.expected, hint=error.hint) from error
            reasons.append(error.problem)
    if not reasons:
        return chosen, []
    start = "random weights" if name == "random" else name
    return chosen, [
        f"the student starts from {start} instead of {settings.init[0]}, so expect lower scores: "
        f"{'; '.join(reasons)}. Run once while online, or pass another encoder as `init='DIR'`; "
        f"`init={name!r}` turns this warning off"
    ]


def _require_available(
    settings: TransformerSettings, name: str, init_spec: InitSpec, *, reads_own_tokens: bool
) -> None:
    """Check that an encoder has the student's sizes and vocabulary; download its weights."""
    config, teacher = student_transformer(settings, init_spec), init_spec.teacher
    if reads_own_tokens:
        require_encoder(settings)
    if name in _NO_NAMES:
        return
    if isinstance(teacher, TransformerConfig) and not reads_own_tokens:
        sizes = config.hf["vocab_size"], teacher.hf["vocab_size"]
        if sizes[0] != sizes[1]:
            raise UserError(
                f"{name} has a vocabulary of {sizes[0]} token ids, and the teacher one of {sizes[1]}"
            )
        if has_other_vocabulary(name, init_spec):
            raise UserError(f"{name} has other tokens than the teacher")
    load_named(find_weights, locate(name), "encoder")


def require_encoder(settings: TransformerSettings) -> None:
    """Check that a student with `student.vocabulary=encoder` starts from a pretrained encoder."""
    if settings.init in ("teacher", "random"):
        raise UserError(
            f"student.vocabulary=encoder cannot be combined with student.transformer.init={settings.init}",
            expected="the name of a pretrained encoder as student.transformer.init",
            hint="use `student.transformer.init='NAME'`, or `student.vocabulary=teacher`",
        )


def require_teacher_vocabulary(settings: TransformerSettings, init_spec: InitSpec) -> None:
    """Check that a student that reads the teacher's tokens starts from an encoder with the same vocabulary.

    Raises:
        UserError: the encoder that `init` names has another vocabulary.
    """
    assert isinstance(settings.init, str), "`first_available` comes first"
    if settings.init in _NO_NAMES or not has_other_vocabulary(settings.init, init_spec):
        return
    other = "the teacher" if init_spec.teacher else f"the default encoder {DEFAULT_ENCODER}"
    raise UserError(
        f"{settings.init}, the encoder that the student starts from, has another vocabulary than {other}",
        hint="choose an encoder with that vocabulary; or use `student.vocabulary=encoder` with a recipe that "
        "compares only logits, such as `pretrained`",
    )


def require_pretrained_tokens(settings: TransformerSettings, context: InitContext) -> None:
    """Check that pretrained layers are not used with a vocabulary that was built from the training texts.

    Raises:
        UserError: the student has such a vocabulary, and would start from pretrained layers.
    """
    if context.own_vocabulary and settings.init != "random":
        raise UserError(
            "the student's vocabulary was built from the training texts, so it cannot start from pretrained "
            "layers",
            hint="use `student.vocabulary=teacher`, `student.vocabulary=encoder` or "
            "`student.transformer.init=random`",
        )


def layers_to_copy(settings: TransformerSettings, layers: int, available: int) -> list[int]:
    """The numbers, from 1, of the layers that a student copies from the encoder that it starts from.

    Args:
        layers: the number of layers of the student.
        available: the number of layers of the encoder that it starts from.

    Raises:
        UserError: a layer does not exist, or the list does not have one entry per layer of the student.
    """
    if not isinstance(settings.init_layers, list):
        return [teacher for _, teacher in named_map_pairs(settings.init_layers, layers, available)]
    chosen = settings.init_layers
    if len(chosen) != layers or not all(1 <= layer <= available for layer in chosen):
        raise UserError(
            f"student.transformer.init_layers={chosen} does not fit a student with "
            f"{counted(layers, 'layer')}",
            expected=f"{counted(layers, 'layer')} from 1 to {available}",
        )
    return chosen


def student_transformer(settings: TransformerSettings, init_spec: InitSpec) -> TransformerConfig:
    """The configuration of the encoder that the student starts from, with the sizes in the settings."""
    if (settings.prune and settings.init != "teacher") or (
        settings.init_layers == "importance" and not settings.prune
    ):
        raise UserError(
            f"student.transformer.prune={str(settings.prune).lower()} cannot be combined with "
            f"init={settings.init!r} and init_layers={settings.init_layers!r}",
            expected="prune=true together with init=teacher; init_layers=importance only with prune=true",
            hint="use `student.transformer.init=teacher` with `student.transformer.prune=true`, or other "
            "`init_layers`",
        )
    source = init_spec.teacher
    if settings.init not in ("teacher", "random") or source is None:
        if settings.init == "teacher":
            raise UserError(
                "student.transformer.init=teacher needs a Transformer teacher, but there is no teacher",
                hint="pass a refined Transformer as `teacher='DIR'`, or use "
                "`student.transformer.init=encoder`",
            )
        pooling = None if settings.pooling == "auto" else settings.pooling
        source = pretrained_config(source_name(settings, init_spec.encoder), pooling)
    if not isinstance(source, TransformerConfig):
        raise UserError(
            f"student.transformer.init={settings.init} needs a Transformer teacher, not {source.kind}",
            hint="pass a refined Transformer as `teacher='DIR'`, or use `student.transformer.init=encoder`",
        )
    sizes = {
        "num_hidden_layers": settings.layers,
        "hidden_size": settings.hidden_size,
        "num_attention_heads": settings.heads,
        "intermediate_size": settings.intermediate_size,
        "hidden_dropout_prob": settings.dropout,
        "attention_probs_dropout_prob": settings.dropout,
    }
    config = with_sizes(source, **{name: size for name, size in sizes.items() if size is not None})
    if settings.prune:
        head_size = source.spec.attention_size // source.spec.heads
        config = config.model_copy(update={"head_size": head_size, "embedding_rank": settings.embedding_size})
    elif settings.embedding_size is not None:
        config = factorised(config, settings.embedding_size)
    config = _with_pooling_and_pairs(config, settings, init_spec)
    hf = config.build_hf()
    if hf.hidden_size % hf.num_attention_heads:
        raise UserError(
            f"a student of width {hf.hidden_size} cannot have {hf.num_attention_heads} attention heads",
            expected="a number of heads that divides the width",
            hint="use `student.transformer.heads=N` or another student.transformer.hidden_size",
        )
    if settings.init != "random":
        _refuse_other_sizes(settings, config, source)
    return config


def _with_pooling_and_pairs(
    config: TransformerConfig, settings: TransformerSettings, init_spec: InitSpec
) -> TransformerConfig:
    """The configuration with the pooling and the reading of text pairs that the settings ask for."""
    pooling = config.pooling if settings.pooling == "auto" else settings.pooling
    pairs: Any = settings.pairs
    if settings.pairs == "auto":
        pairs = getattr(init_spec.teacher or config, "pairs", "cross-encoder")
        if not can_be_bi_encoder(config.model_copy(update={"pooling": pooling})):
            pairs = "cross-encoder"
    config = config.model_copy(update={"pooling": pooling, "pairs": pairs})
    pooler_option(config)
    if pairs != "cross-encoder":
        require_bi_encoder(config)
    return config


def _refuse_other_sizes(
    settings: TransformerSettings, config: TransformerConfig, source: TransformerConfig
) -> None:
    """Refuse sizes other than those of the source; the student can have fewer layers, and other heads."""
    student, start = config.build_hf(), source.build_hf()
    width, feed_forward = "hidden_size", size_name(start, "intermediate_size")
    names = {"width": width, "feed-forward width": feed_forward, "embedding rank": "embedding_size"}
    if settings.prune:
        names = {"width": width}
        _refuse_more(config, source, feed_forward)
    differs = [
        f"{size} {getattr(student, name, None)} instead of {getattr(start, name, None)}"
        for size, name in names.items()
        if getattr(student, name, None) != getattr(start, name, None)
    ]
    if differs or student.num_hidden_layers > start.num_hidden_layers:
        differs = differs or [
            f"{counted(student.num_hidden_layers, 'layer')} instead of {start.num_hidden_layers}"
        ]
        raise UserError(
            f"a student that starts from {settings.init!r} cannot have {', '.join(differs)}",
            expected="the sizes of the encoder that it starts from, with the same number of layers or fewer",
            hint="change the sizes in student.transformer, or use `student.transformer.init=random`",
        )


def _refuse_more(config: TransformerConfig, source: TransformerConfig, feed_forward: str) -> None:
    """Refuse a pruned student that is larger than its teacher in any size."""
    student, teacher = config.build_hf(), source.build_hf()
    for description, count, highest in (
        ("{} attention heads", config.spec.heads, source.spec.heads),
        ("{} feed-forward units", getattr(student, feed_forward), getattr(teacher, feed_forward)),
        ("an embedding rank of {}", config.embedding_rank or 0, source.spec.hidden_size),
    ):
        if count > highest:
            raise UserError(
                f"a student that is pruned from its teacher cannot have {description.format(count)}",
                expected=f"up to {highest}",
            )
