"""The encoders there are, by kind, and how a student's encoder is made from a recipe's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mtkd.config import StudentSettings
from mtkd.students.bilstm import BiLSTMConfig, BiLSTMEncoder
from mtkd.students.transformer import (
    DEFAULT_TEACHER,
    TransformerConfig,
    TransformerEncoder,
    transformer_from,
)
from tasks.errors import UserError
from tasks.tokenise import Tokeniser

AnyEncoder = BiLSTMEncoder | TransformerEncoder

# What a saved model is read back with: its configuration and its encoder, by kind.
ENCODERS: dict[str, tuple[Any, Any]] = {
    "bilstm-biattention": (BiLSTMConfig, BiLSTMEncoder),
    "bilstm": (BiLSTMConfig, BiLSTMEncoder),
    "transformer": (TransformerConfig, TransformerEncoder),
}


@dataclass(frozen=True)
class Origin:
    """What a student may be started from.

    Attributes:
        tokeniser: the student's own.
        teacher: the teacher's encoder; None where there is no teacher.
        teacher_tokeniser: the teacher's; the student's own where there is no teacher.
        base: the pretrained encoder that the teacher was refined from.
    """

    tokeniser: Tokeniser
    teacher: AnyEncoder | None
    teacher_tokeniser: Tokeniser
    base: str | None


def encoder_from_json(value: Mapping[str, Any]) -> AnyEncoder:
    """The encoder (fresh weights) whose configuration was saved as `value`."""
    config_type, encoder_type = ENCODERS[value["kind"]]
    encoder: AnyEncoder = encoder_type(config_type(**value))
    return encoder


def build_student(settings: StudentSettings, origin: Origin) -> AnyEncoder:
    """The student's encoder; the caller seeds torch.

    Raises:
        UserError: embeddings or layers are asked for that the teacher cannot give.
    """
    return STUDENTS[settings.kind](settings, origin)


def _bilstm(settings: StudentSettings, origin: Origin) -> BiLSTMEncoder:
    sizes = settings.bilstm.model_dump()
    table = None
    if settings.embeddings == "teacher":
        table = _teacher_embeddings(settings, origin)
        given = "embedding_size" in settings.bilstm.model_fields_set
        if given and sizes["embedding_size"] != table.shape[1]:
            raise UserError(
                f"student embeddings are {sizes['embedding_size']} wide, the teacher's {table.shape[1]}",
                mend=f"--set student.bilstm.embedding_size={table.shape[1]}, or student.embeddings=random",
            )
        sizes["embedding_size"] = table.shape[1]
    fixed = {"kind": settings.kind, "vocab_size": origin.tokeniser.vocab_size, "dropout": settings.dropout}
    return BiLSTMEncoder(BiLSTMConfig.model_validate(sizes | fixed), table)


def _transformer(settings: StudentSettings, origin: Origin) -> TransformerEncoder:
    wanted = settings.transformer
    if settings.embeddings == "teacher":
        raise UserError(
            "student.embeddings=teacher is for students that are no Transformer",
            mend="--set student.transformer.init=teacher takes the teacher's embeddings and first layers",
        )
    if origin.tokeniser.digest != origin.teacher_tokeniser.digest and wanted.init != "random":
        raise UserError(
            "the student's vocabulary is not the teacher's, so its layers cannot start from pretrained ones",
            mend="--set student.vocabulary=wordpiece, or --set student.transformer.init=random",
        )
    if wanted.init == "base":
        return TransformerEncoder.pretrained(origin.base or DEFAULT_TEACHER, wanted.pooling, wanted.layers)
    if wanted.init not in ("teacher", "random"):
        return TransformerEncoder.pretrained(wanted.init, wanted.pooling, wanted.layers)
    if not isinstance(origin.teacher, TransformerEncoder):
        raise UserError(
            f"student.transformer.init={wanted.init} needs a Transformer teacher; there is none",
            mend="pass --teacher DIR of a refined Transformer, or --set student.transformer.init=base",
        )
    return transformer_from(origin.teacher, wanted.layers, wanted.pooling, copy=wanted.init == "teacher")


STUDENTS: dict[str, Callable[[StudentSettings, Origin], AnyEncoder]] = {
    "bilstm-biattention": _bilstm,
    "bilstm": _bilstm,
    "transformer": _transformer,
}


def _teacher_embeddings(settings: StudentSettings, origin: Origin) -> Any:
    """A copy of the teacher's word embeddings (V, d)."""
    if origin.teacher is None:
        raise UserError(
            "student.embeddings=teacher needs a teacher, and there is none",
            mend="pass --teacher DIR, or --set student.embeddings=random",
        )
    if origin.tokeniser.digest != origin.teacher_tokeniser.digest:
        raise UserError(
            "student.embeddings=teacher needs the teacher's vocabulary of "
            f"{origin.teacher_tokeniser.vocab_size} ids; the student's own has {origin.tokeniser.vocab_size}",
            mend="--set student.vocabulary=wordpiece, or --set student.embeddings=random",
        )
    return origin.teacher.embeddings.weight.detach().clone()
