"""What a student may start from, and how weights of the teacher are copied into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from torch import Tensor, nn

from mtkd.models.capture import find_layers
from mtkd.models.pruning import Importance
from tasks.errors import UserError
from tasks.tokeniser import Tokeniser

if TYPE_CHECKING:
    from mtkd.models.encoders.base import AnyEncoder, EncoderConfig, StudentSettings


@dataclass(frozen=True)
class InitSpec:
    """What is known of the teacher before any weights are loaded.

    Attributes:
        teacher: the configuration of the teacher's encoder; None without a teacher.
        base: name of the pretrained encoder that the teacher was fine-tuned from.
    """

    teacher: EncoderConfig | None
    base: str | None


@dataclass(frozen=True)
class InitContext:
    """What a student is built from.

    Attributes:
        tokeniser: the student's tokeniser.
        teacher: the teacher's encoder; None without a teacher, or if none of its weights are needed.
        teacher_tokeniser: the teacher's tokeniser; the student's own without a teacher.
        init_spec: what is known of the teacher without its weights.
        importance: of the teacher's parts; given if the student's settings need it.
        texts: the training texts, one array per column; may be empty.
    """

    tokeniser: Tokeniser
    teacher: AnyEncoder | None
    teacher_tokeniser: Tokeniser
    init_spec: InitSpec
    importance: Importance | None = None
    texts: Sequence[pa.StringArray] = ()

    @property
    def own_vocabulary(self) -> bool:
        """True if the student does not read with the teacher's tokeniser."""
        return self.tokeniser.digest != self.teacher_tokeniser.digest


def teacher_embeddings(context: InitContext) -> Tensor:
    """A copy of the teacher's word embeddings (V, d).

    Raises:
        UserError: there is no teacher, or it has another vocabulary.
    """
    if context.teacher is None:
        raise UserError(
            "student.embeddings=teacher needs a teacher, and there is none",
            hint="pass `teacher=DIR`, or `student.embeddings=random`",
        )
    if context.own_vocabulary:
        raise UserError(
            "student.embeddings=teacher needs the teacher's vocabulary of "
            f"{context.teacher_tokeniser.vocab_size} ids; the student's own has "
            f"{context.tokeniser.vocab_size}",
            hint="`student.vocabulary=wordpiece`, or `student.embeddings=random`",
        )
    table: Tensor = context.teacher.embeddings.weight
    return table.detach().clone()


def refuse_teacher_embeddings(settings: StudentSettings, reason: str, hint: str) -> None:
    """Refuse `student.embeddings=teacher` for a student that cannot start from them.

    Raises:
        UserError: the setting is on.
    """
    if settings.embeddings == "teacher":
        raise UserError(reason, hint=hint)


def copy_layers(
    student: nn.Module, n_layers: int, source: nn.Module, source_layers: int, layers: Sequence[int]
) -> None:
    """Give a Transformer the embeddings of another one and some of its layers.

    Args:
        n_layers: layers of the student.
        source_layers: layers of the source.
        layers: for each layer of the student the source's layer, both from 1.

    Raises:
        UserError: a weight has another shape.
    """
    places = find_layers(student, n_layers), find_layers(source, source_layers)
    to, of = (f"{place[0]}." if place else None for place in places)
    weights = source.state_dict()
    taken = {}
    for name, weight in student.state_dict().items():
        origin = name
        if to and of and name.startswith(to):
            number, _, rest = name.removeprefix(to).partition(".")
            origin = f"{of}{layers[int(number)] - 1}.{rest}"
        there = tuple(weights[origin].shape) if origin in weights else "none"
        if there != tuple(weight.shape):
            raise UserError(
                f"the student's {name} is {tuple(weight.shape)}, there {there} in the encoder it starts from",
                expected="the sizes of the encoder it starts from, but for layers and heads",
                hint="leave out the student's sizes, or `student.transformer.init=random`",
            )
        taken[name] = weights[origin]
    student.load_state_dict(taken)
