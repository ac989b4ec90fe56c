"""The encoders there are, by kind, and how a student's encoder is made from a recipe's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mtkd.losses.layer_maps import spread
from mtkd.models.encoders.bilstm import BiLSTMConfig, BiLSTMEncoder
from mtkd.models.encoders.pretrained_config import (
    DEFAULT_TEACHER,
    TransformerConfig,
    factorised,
    pretrained_config,
    size_name,
    with_sizes,
)
from mtkd.models.encoders.transformer import TransformerEncoder, copy_layers
from mtkd.models.encoders.waldorf import WaldorfConfig, WaldorfEncoder
from mtkd.models.pruning import Importance, prune_into
from mtkd.settings import StudentSettings, TransformerSettings
from tasks.errors import UserError
from tasks.tokeniser import Tokeniser

AnyConfig = BiLSTMConfig | TransformerConfig | WaldorfConfig
AnyEncoder = BiLSTMEncoder | TransformerEncoder | WaldorfEncoder

# What a saved model is read back with: its configuration and its encoder, by kind.
ENCODERS: dict[str, tuple[Any, Any]] = {
    "bilstm-biattention": (BiLSTMConfig, BiLSTMEncoder),
    "bilstm": (BiLSTMConfig, BiLSTMEncoder),
    "transformer": (TransformerConfig, TransformerEncoder),
    "waldorf": (WaldorfConfig, WaldorfEncoder),
}


@dataclass(frozen=True)
class InitSpec:
    """What a student descends from, as known before any weight is loaded.

    Attributes:
        teacher: the teacher's encoder; None where there is no teacher.
        base: the pretrained encoder that the teacher was refined from.
    """

    teacher: AnyConfig | None
    base: str | None


@dataclass(frozen=True)
class InitContext:
    """What a student may be started from.

    Attributes:
        tokeniser: the student's own.
        teacher: the teacher's encoder; None where there is no teacher, or no weights of it are wanted.
        teacher_tokeniser: the teacher's; the student's own where there is no teacher.
        init_spec: what it descends from.
        importance: of the teacher's parts, where the student is pruned.
    """

    tokeniser: Tokeniser
    teacher: AnyEncoder | None
    teacher_tokeniser: Tokeniser
    init_spec: InitSpec
    importance: Importance | None = None


def config_from_json(value: Mapping[str, Any]) -> AnyConfig:
    """The configuration that was saved as `value`."""
    config: AnyConfig = ENCODERS[value["kind"]][0](**value)
    return config


def encoder_from_json(value: Mapping[str, Any]) -> AnyEncoder:
    """The encoder (fresh weights) whose configuration was saved as `value`."""
    encoder: AnyEncoder = ENCODERS[value["kind"]][1](config_from_json(value))
    return encoder


def student_config(settings: StudentSettings, init_spec: InitSpec) -> AnyConfig:
    """What the student will be; no weights are loaded. The vocabulary is known only of a Transformer.

    Raises:
        UserError: sizes that do not go together, or not with what the student starts from.
    """
    if settings.kind == "transformer":
        return _transformer_config(settings.transformer, init_spec)
    if settings.kind == "waldorf":
        return WaldorfConfig.of(settings, 1)
    return BiLSTMConfig.model_validate(
        settings.bilstm.model_dump() | {"kind": settings.kind, "vocab_size": 1, "dropout": settings.dropout}
    )


def build_student(settings: StudentSettings, origin: InitContext) -> AnyEncoder:
    """The student's encoder; the caller seeds torch.

    Raises:
        UserError: embeddings or layers are asked for that the teacher cannot give.
    """
    return STUDENTS[settings.kind](settings, origin)


def _bilstm(settings: StudentSettings, origin: InitContext) -> BiLSTMEncoder:
    sizes = settings.bilstm.model_dump()
    table = None
    if settings.embeddings == "teacher":
        table = _teacher_embeddings(settings, origin)
        given = "embedding_size" in settings.bilstm.model_fields_set
        if given and sizes["embedding_size"] != table.shape[1]:
            raise UserError(
                f"student embeddings are {sizes['embedding_size']} wide, the teacher's {table.shape[1]}",
                hint=f"--set student.bilstm.embedding_size={table.shape[1]}, or student.embeddings=random",
            )
        sizes["embedding_size"] = table.shape[1]
    fixed = {"kind": settings.kind, "vocab_size": origin.tokeniser.vocab_size, "dropout": settings.dropout}
    return BiLSTMEncoder(BiLSTMConfig.model_validate(sizes | fixed), table)


def _transformer(settings: StudentSettings, origin: InitContext) -> TransformerEncoder:
    wanted = settings.transformer
    if settings.embeddings == "teacher":
        raise UserError(
            "student.embeddings=teacher is for students that are no Transformer",
            hint="--set student.transformer.init=teacher takes the teacher's embeddings and first layers",
        )
    own_words = origin.tokeniser.digest != origin.teacher_tokeniser.digest
    if own_words and wanted.init in ("base", "teacher"):
        raise UserError(
            "the student's vocabulary is not the teacher's, so its layers cannot start from pretrained ones",
            hint="--set student.vocabulary=wordpiece, or --set student.transformer.init=random",
        )
    config = _transformer_config(wanted, origin.init_spec)
    if own_words:
        config = with_sizes(config, vocab_size=origin.tokeniser.vocab_size)
    student = TransformerEncoder(config)
    if wanted.init == "random":
        return student
    if wanted.init == "teacher":
        assert isinstance(origin.teacher, TransformerEncoder), "_transformer_config refuses others"
        source = origin.teacher
    else:
        source = TransformerEncoder.pretrained(_source_name(wanted, origin.init_spec.base))
    if not wanted.prune:
        copy_layers(student, source, taken_layers(wanted, student.n_layers, source.n_layers))
        return student
    assert origin.importance is not None and config.head_size, "whoever builds a pruned student measures it"
    if wanted.take == "importance":
        layers = origin.importance.best_layers(student.n_layers)
    else:
        layers = taken_layers(wanted, student.n_layers, source.n_layers)
    models = student.body, student.n_layers, source.body, source.n_layers
    prune_into(*models, layers, origin.importance, config.head_size)
    return student


def _waldorf(settings: StudentSettings, origin: InitContext) -> WaldorfEncoder:
    if settings.embeddings == "teacher":
        raise UserError(
            "a WaLDORf's embeddings are smaller than the teacher's, so they cannot start from them",
            hint="--set student.embeddings=random; a hidden_mse term with layers = [[0, 0]] brings them near",
        )
    return WaldorfEncoder(WaldorfConfig.of(settings, origin.tokeniser.vocab_size))


def _source_name(wanted: TransformerSettings, base: str | None) -> str:
    return (base or DEFAULT_TEACHER) if wanted.init in ("base", "random", "teacher") else wanted.init


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


def _transformer_config(wanted: TransformerSettings, init_spec: InitSpec) -> TransformerConfig:
    """The student's configuration: that of what it starts from, in the sizes that are asked for."""
    if (wanted.prune and wanted.init != "teacher") or (wanted.take == "importance" and not wanted.prune):
        raise UserError(
            f"student.transformer.prune={str(wanted.prune).lower()} with init={wanted.init!r}, "
            f"take={wanted.take!r}",
            expected="prune=true with init=teacher, and take=importance only then",
            hint="--set student.transformer.init=teacher",
        )
    source = init_spec.teacher
    if wanted.init not in ("teacher", "random") or source is None:
        if wanted.init == "teacher":
            raise UserError(
                "student.transformer.init=teacher needs a Transformer teacher; there is none",
                hint="pass --teacher DIR of a refined Transformer, or --set student.transformer.init=base",
            )
        source = pretrained_config(_source_name(wanted, init_spec.base))
    if not isinstance(source, TransformerConfig):
        raise UserError(
            f"student.transformer.init={wanted.init} needs a Transformer teacher; this one is a BiLSTM",
            hint="pass --teacher DIR of a refined Transformer, or --set student.transformer.init=base",
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
            hint="--set student.transformer.heads=N, or another student.transformer.hidden_size",
        )
    if wanted.init != "random":
        _refuse_other_sizes(wanted, config, source)
    return config


def _refuse_other_sizes(
    wanted: TransformerSettings, mine: TransformerConfig, source: TransformerConfig
) -> None:
    """Weights can only be copied between encoders of one width; layers and heads may differ."""
    student, there = mine.build_hf(), source.build_hf()
    width, feed_forward = "hidden_size", size_name(there, "intermediate_size")
    names = {"width": width, "feed-forward width": feed_forward, "embedding rank": "embedding_size"}
    if wanted.prune:
        names = {"width": width}
        _refuse_more(mine, source, feed_forward)
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
            hint="change student.transformer.* to these sizes, or --set student.transformer.init=random",
        )


def _refuse_more(mine: TransformerConfig, source: TransformerConfig, feed_forward: str) -> None:
    """A pruned student has no more of anything than its teacher."""
    student, there = mine.build_hf(), source.build_hf()
    for words, count, most in (
        ("attention heads", mine.shape.heads, source.shape.heads),
        ("feed-forward units", getattr(student, feed_forward), getattr(there, feed_forward)),
        ("embedding rank", mine.embedding_rank or 0, source.shape.width),
    ):
        if count > most:
            raise UserError(
                f"a student that is cut out of its teacher cannot have {words} {count}",
                expected=f"up to {most}",
            )


STUDENTS: dict[str, Callable[[StudentSettings, InitContext], AnyEncoder]] = {
    "bilstm-biattention": _bilstm,
    "bilstm": _bilstm,
    "transformer": _transformer,
    "waldorf": _waldorf,
}


def _teacher_embeddings(settings: StudentSettings, origin: InitContext) -> Any:
    """A copy of the teacher's word embeddings (V, d)."""
    if origin.teacher is None:
        raise UserError(
            "student.embeddings=teacher needs a teacher, and there is none",
            hint="pass --teacher DIR, or --set student.embeddings=random",
        )
    if origin.tokeniser.digest != origin.teacher_tokeniser.digest:
        raise UserError(
            "student.embeddings=teacher needs the teacher's vocabulary of "
            f"{origin.teacher_tokeniser.vocab_size} ids; the student's own has {origin.tokeniser.vocab_size}",
            hint="--set student.vocabulary=wordpiece, or --set student.embeddings=random",
        )
    return origin.teacher.embeddings.weight.detach().clone()
