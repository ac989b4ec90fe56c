"""Student and teacher as a term finds them: layers, widths, heads, and what is refused."""

from __future__ import annotations

from mtkd.losses.base import ModelPair
from mtkd.losses.layer_maps import Pairs, layer_pairs
from mtkd.losses.layered import Projections
from mtkd.losses.registry import losses_for
from tasks.errors import UserError


def pairs_of(name: str, spec: str | Pairs, models: ModelPair, pooled: bool = False) -> Pairs:
    """The layer pairs of a term.

    Args:
        pooled: the term takes a state of the student for `EncoderSpec.stride` tokens, others for one.

    Raises:
        UserError: a side has no layers or heads at all: it is an LSTM; or a layer's states are not what the
            term takes them for.
    """
    for who, shape in (("student", models.student), ("teacher", models.teacher)):
        if not shape.layers:
            raise UserError(
                f"the term {name!r} compares Transformer layers, and the {who} ({shape.family}) has "
                "neither layers nor attention heads",
                expected=f"for such a {who}: {losses_for('without_layers')}",
                hint=f"drop the term with `terms.{name}.weight=0`, or `student.kind=transformer`",
            )
    pairs = layer_pairs(spec, models.student, models.teacher)
    _require_windows(name, models, pairs) if pooled else _require_tokens(name, models, pairs)
    return pairs


def _require_tokens(name: str, models: ModelPair, pairs: Pairs) -> None:
    """Refuse layers whose states stand for several tokens."""
    if models.student.stride > 1 and any(layer for layer, _ in pairs):
        raise UserError(
            f"the term {name!r} compares layers token by token, and above the embeddings a state of the "
            f"student ({models.student.family}) stands for {models.student.stride} tokens",
            expected=f"for such a student: {losses_for('with_strides')}",
            hint=f"--set terms.{name}.loss=pooled_hidden_mse or pooled_score_mse, "
            f"or drop the term with `terms.{name}.weight=0`",
        )
    _require_teacher(name, models, pairs)


def _require_windows(name: str, models: ModelPair, pairs: Pairs) -> None:
    """Refuse embeddings, of which there is one a token."""
    if models.student.stride > 1 and any(layer == 0 for layer, _ in pairs):
        raise UserError(
            f"the term {name!r} takes a state of the student for {models.student.stride} tokens, and its "
            "layer 0 (embeddings) has one for each",
            expected=f"layers 1 to {models.student.layers}",
            hint="a term hidden_mse with layers = [[0, 0]] compares the embeddings",
        )
    _require_teacher(name, models, pairs)


def _require_teacher(name: str, models: ModelPair, pairs: Pairs) -> None:
    if models.teacher.stride > 1 and any(layer for _, layer in pairs):
        raise UserError(
            f"the term {name!r} compares layers, and above the embeddings a state of the teacher "
            f"({models.teacher.family}) stands for {models.teacher.stride} tokens",
            expected=f"from such a teacher: {losses_for('without_layers')}",
            hint=f"drop the term with `terms.{name}.weight=0`, or choose another teacher",
        )


def widths_of(models: ModelPair, of: str) -> tuple[int, int]:
    """A width (field of EncoderSpec) of student and teacher."""
    return getattr(models.student, of), getattr(models.teacher, of)


def hidden_widths(models: ModelPair, pairs: Pairs) -> tuple[int, int]:
    """Widths of hidden states; embeddings of another width are compared alone, or refused by `pairs_of`."""
    layer_s, layer_t = pairs[0]
    return models.student.width_of(layer_s), models.teacher.width_of(layer_t)


def vector_layers(name: str, vector: str, models: ModelPair) -> tuple[int, int]:
    """The last layers, whose first tokens a SampleTerm compares; (0, 0) if it compares pooled vectors."""
    if vector == "pooled":
        return 0, 0
    return pairs_of(name, [(models.student.layers, models.teacher.layers)], models)[0]


def projections_of(name: str, kind: str, pairs: Pairs, widths: tuple[int, int]) -> Projections:
    """The projections of a term.

    Raises:
        UserError: there are to be none, and the widths differ.
    """
    if kind == "none" and widths[0] != widths[1]:
        raise UserError(
            f"the term {name!r} compares vectors of {widths[0]} (student) and {widths[1]} (teacher) directly",
            hint=f"--set terms.{name}.projection=shared",
        )
    return Projections(kind, pairs, *widths)


def require_same_heads(name: str, models: ModelPair) -> None:
    """Refuse another number of attention heads than the teacher's.

    Raises:
        UserError: the numbers, and how to mend it.
    """
    heads_s, heads_t = models.student.heads, models.teacher.heads
    if heads_s and heads_t and heads_s != heads_t:
        other = "" if models.student.stride > 1 else ", or the loss 'relation', which takes any number"
        raise UserError(
            f"the term {name!r} compares attention head by head: "
            f"the student has {heads_s}, the teacher {heads_t}",
            expected=f"{heads_t} heads{other}",
            hint=f"--set student.{models.student.table}.heads={heads_t}, or --set terms.{name}.weight=0",
        )
