"""What a student can be initialised from, and how weights are copied into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from torch import Tensor, nn

from mtkd.models.capture import find_layers
from mtkd.models.pruning import Importance
from tasks.common.errors import UserError
from tasks.tokens.tokeniser import Tokeniser

if TYPE_CHECKING:
    from mtkd.models.encoders.encoder import AnyEncoder, EncoderConfig


@dataclass(frozen=True)
class InitSpec:
    """What is known about the teacher before any weights are loaded.

    Attributes:
        teacher: the configuration of the teacher's encoder; None without a teacher.
        encoder: the name of the pretrained encoder that the teacher was fine-tuned from.
        in_memory: True if the teacher is a transformers model in memory, whose pretrained encoder is unknown.
        load_tokeniser: loads the teacher's tokeniser; None without a teacher.
    """

    teacher: EncoderConfig | None
    encoder: str | None
    in_memory: bool = False
    load_tokeniser: Callable[[], Tokeniser] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class InitContext:
    """Everything that a student can be initialised from.

    Attributes:
        tokeniser: the student's tokeniser.
        teacher: the teacher's encoder; None without a teacher, or if none of its weights are needed.
        teacher_tokeniser: the teacher's tokeniser; without a teacher, the student's own.
        init_spec: what is known about the teacher without its weights.
        importance: the importance of the teacher's parts, if the student's settings need it.
        texts: the training texts, one array per column; can be empty.
        kept: for each token id of the student, the teacher's id of the same token, if the student's
            vocabulary is a subset of the teacher's; else None.
        cache: the directory in which what is computed with the teacher is kept for further students; None =
            nowhere.
    """

    tokeniser: Tokeniser
    teacher: AnyEncoder | None
    teacher_tokeniser: Tokeniser
    init_spec: InitSpec
    importance: Importance | None = None
    texts: Sequence[pa.StringArray] = ()
    kept: np.ndarray | None = None
    cache: Path | None = None

    @property
    def own_vocabulary(self) -> bool:
        """True if the student has a tokeniser of its own, different from the teacher's."""
        return self.tokeniser.digest != self.teacher_tokeniser.digest


def teacher_embeddings(context: InitContext, setting: str) -> Tensor:
    """A copy of the teacher's word embeddings of the student's tokens, (V, d).

    Args:
        setting: the setting that asks for them, such as "student.bilstm.embeddings", for errors.

    Raises:
        UserError: there is no teacher, or its vocabulary differs from the student's.
    """
    if context.teacher is None:
        raise UserError(
            f"{setting}=teacher needs a teacher, but there is none",
            hint=f"pass `teacher='DIR'`, or use `{setting}=random`",
        )
    if context.own_vocabulary and context.kept is None:
        raise UserError(
            f"{setting}=teacher needs the teacher's vocabulary of "
            f"{context.teacher_tokeniser.vocab_size} token ids, but the student has its own of "
            f"{context.tokeniser.vocab_size}",
            hint=f"use `student.vocabulary=teacher` or `{setting}=random`",
        )
    table: Tensor = context.teacher.embeddings.weight
    return table.detach().clone() if context.kept is None else table.detach()[context.kept]


def check_embedding_width(size: int, table: Tensor, group: str, source: str) -> None:
    """Check that embeddings of width `size` can start from a table of word embeddings, (V, d).

    Args:
        group: the table of settings that has `embedding_size`, such as "student.bilstm".
        source: the origin of the table, for error messages.

    Raises:
        UserError: `size` is not d.
    """
    if size != (width := table.shape[1]):
        raise UserError(
            f"the student's embeddings have width {size}, but those of {source} have width {width}",
            hint=f"use `{group}.embedding_size={width}` or `{group}.embeddings=random`",
        )


def copy_layers(
    student: nn.Module, n_layers: int, source: nn.Module, source_layers: int, layers: Sequence[int]
) -> None:
    """Copy the embeddings and some of the layers of one Transformer into another.

    Args:
        n_layers: the number of layers of the student.
        source_layers: the number of layers of the source.
        layers: for each layer of the student, the number of the source layer, from 1.

    Raises:
        UserError: the shapes of a weight differ.
    """
    layer_lists = find_layers(student, n_layers), find_layers(source, source_layers)
    student_prefix, source_prefix = (f"{named[0]}." if named else None for named in layer_lists)
    weights = source.state_dict()
    copied = {}
    for name, weight in student.state_dict().items():
        origin = name
        if student_prefix and source_prefix and name.startswith(student_prefix):
            number, _, rest = name.removeprefix(student_prefix).partition(".")
            origin = f"{source_prefix}{layers[int(number)] - 1}.{rest}"
        if origin not in weights and name.startswith("pooler."):  # it starts at random
            copied[name] = weight
            continue
        shape = tuple(weights[origin].shape) if origin in weights else "missing"
        if shape != tuple(weight.shape):
            raise UserError(
                f"the student's {name} has the shape {tuple(weight.shape)}, but in the encoder that it "
                f"starts from it is {shape}",
                expected="the sizes of that encoder, except for the numbers of layers and heads",
                hint="leave out the student's sizes, or use `student.transformer.init=random`",
            )
        copied[name] = weights[origin]
    student.load_state_dict(copied)
