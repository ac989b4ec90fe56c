"""Student and teacher as a term finds them: layers, widths, heads, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

from mtkd.layermap import Pairs, layer_pairs
from mtkd.losses.shared import Projections
from mtkd.records import Shape
from tasks.errors import UserError
from tasks.task import Task

# What a student without layers and heads can learn from,
_OF_ANY_STUDENT = (
    "logits_mse, soft_labels, labels, and sample_similarity or sample_contrastive with vector=pooled"
)
# and one of which a state stands for several tokens.
_OF_STRIDES = (
    "pooled_hidden_mse and pooled_score_mse; of the embeddings (layers = [[0, 0]]) hidden_mse, hidden_cosine "
    f"and token_similarity; {_OF_ANY_STUDENT}"
)


@dataclass(frozen=True)
class Sides:
    """Who learns from whom, and the tasks they meet on."""

    student: Shape
    teacher: Shape
    tasks: tuple[Task, ...]


def pairs_of(name: str, spec: str | Pairs, sides: Sides, pooled: bool = False) -> Pairs:
    """The layer pairs of a term.

    Args:
        pooled: the term takes a state of the student for `Shape.stride` tokens, others for one.

    Raises:
        UserError: a side has no layers or heads at all: it is an LSTM; or a layer's states are not what the
            term takes them for.
    """
    for who, shape in (("student", sides.student), ("teacher", sides.teacher)):
        if not shape.layers:
            raise UserError(
                f"the term {name!r} compares Transformer layers, and the {who} ({shape.family}) has "
                "neither layers nor attention heads",
                allowed=f"for such a {who}: {_OF_ANY_STUDENT}",
                mend=f"drop the term with --set terms.{name}.weight=0, or --set student.kind=transformer",
            )
    pairs = layer_pairs(spec, sides.student, sides.teacher)
    _require_windows(name, sides, pairs) if pooled else _require_tokens(name, sides, pairs)
    return pairs


def _require_tokens(name: str, sides: Sides, pairs: Pairs) -> None:
    """Refuse layers whose states stand for several tokens."""
    if sides.student.stride > 1 and any(mine for mine, _ in pairs):
        raise UserError(
            f"the term {name!r} compares layers token by token, and above the embeddings a state of the "
            f"student ({sides.student.family}) stands for {sides.student.stride} tokens",
            allowed=f"for such a student: {_OF_STRIDES}",
            mend=f"--set terms.{name}.loss=pooled_hidden_mse or pooled_score_mse, "
            f"or drop the term with --set terms.{name}.weight=0",
        )
    _require_teacher(name, sides, pairs)


def _require_windows(name: str, sides: Sides, pairs: Pairs) -> None:
    """Refuse embeddings, of which there is one a token."""
    if sides.student.stride > 1 and any(mine == 0 for mine, _ in pairs):
        raise UserError(
            f"the term {name!r} takes a state of the student for {sides.student.stride} tokens, and its "
            "layer 0 (embeddings) has one for each",
            allowed=f"layers 1 to {sides.student.layers}",
            mend="a term hidden_mse with layers = [[0, 0]] compares the embeddings",
        )
    _require_teacher(name, sides, pairs)


def _require_teacher(name: str, sides: Sides, pairs: Pairs) -> None:
    if sides.teacher.stride > 1 and any(theirs for _, theirs in pairs):
        raise UserError(
            f"the term {name!r} compares layers, and above the embeddings a state of the teacher "
            f"({sides.teacher.family}) stands for {sides.teacher.stride} tokens",
            allowed=f"from such a teacher: {_OF_ANY_STUDENT}",
            mend=f"drop the term with --set terms.{name}.weight=0, or choose another teacher",
        )


def widths_of(sides: Sides, of: str) -> tuple[int, int]:
    """A width (field of Shape) of student and teacher."""
    return getattr(sides.student, of), getattr(sides.teacher, of)


def hidden_widths(sides: Sides, pairs: Pairs) -> tuple[int, int]:
    """Widths of hidden states; embeddings of another width are compared alone, or refused by `pairs_of`."""
    mine, theirs = pairs[0]
    return sides.student.width_of(mine), sides.teacher.width_of(theirs)


def projections_of(name: str, kind: str, pairs: Pairs, widths: tuple[int, int]) -> Projections:
    """The projections of a term.

    Raises:
        UserError: there are to be none, and the widths differ.
    """
    if kind == "none" and widths[0] != widths[1]:
        raise UserError(
            f"the term {name!r} compares vectors of {widths[0]} (student) and {widths[1]} (teacher) directly",
            mend=f"--set terms.{name}.projection=shared",
        )
    return Projections(kind, pairs, *widths)


def require_same_heads(name: str, sides: Sides) -> None:
    """Refuse another number of attention heads than the teacher's.

    Raises:
        UserError: the numbers, and how to mend it.
    """
    mine, theirs = sides.student.heads, sides.teacher.heads
    if mine and theirs and mine != theirs:
        other = "" if sides.student.stride > 1 else ", or the loss 'relation', which takes any number"
        kind = "waldorf" if sides.student.stride > 1 else "transformer"
        raise UserError(
            f"the term {name!r} compares attention head by head: "
            f"the student has {mine}, the teacher {theirs}",
            allowed=f"{theirs} heads{other}",
            mend=f"--set student.{kind}.heads={theirs}, or --set terms.{name}.weight=0",
        )
