"""Checks that student and teacher fit a loss term: outputs, layers, widths and attention heads."""

from __future__ import annotations

from mtkd.losses.layer_maps import LayerPairs, layer_pairs
from mtkd.losses.layered import Projections, SampleTerm
from mtkd.losses.loss_registry import losses_for
from mtkd.losses.loss_term import LossTerm, ModelPair
from mtkd.outputs import LOGITS, EncoderSpec
from tasks.common.errors import UserError, counted


def pairs_of(name: str, spec: str | LayerPairs, models: ModelPair, pooled: bool = False) -> LayerPairs:
    """Resolve the layer map of a term to (student layer, teacher layer) pairs.

    Args:
        pooled: True for terms that compare one student state with `EncoderSpec.stride` teacher tokens; other
            terms compare token by token.

    Raises:
        UserError: a model has no Transformer layers (an LSTM), or the states of a layer cover more or fewer
            tokens than the term expects.
    """
    for who, model in (("student", models.student), ("teacher", models.teacher)):
        if not model.layers:
            raise UserError(
                f"the term {name!r} compares Transformer layers, but the {who} ({model.family}) has "
                "neither layers nor attention heads",
                expected=f"for such a {who}: {losses_for('works_without_layers')}",
                hint=f"drop the term with `terms.{name}.weight=0`, or use `student.kind=transformer`",
            )
    pairs = layer_pairs(spec, models.student, models.teacher)
    _require_window_states(name, models, pairs) if pooled else _require_token_states(name, models, pairs)
    return pairs


def _require_token_states(name: str, models: ModelPair, pairs: LayerPairs) -> None:
    """Refuse student layers whose states cover several tokens."""
    if models.student.stride > 1 and any(layer for layer, _ in pairs):
        raise UserError(
            f"the term {name!r} compares layers token by token, but above the embeddings each state of the "
            f"student ({models.student.family}) stands for {models.student.stride} tokens",
            expected=f"for such a student: {losses_for('works_with_strides')}",
            hint=f"use `terms.{name}.loss=pooled_hidden_mse` or "
            f"`terms.{name}.loss=pooled_attention_score_mse`, "
            f"or drop the term with `terms.{name}.weight=0`",
        )
    _require_teacher_token_states(name, models, pairs)


def _require_window_states(name: str, models: ModelPair, pairs: LayerPairs) -> None:
    """Refuse the student's embedding layer, which has one state per token."""
    if models.student.stride > 1 and any(layer == 0 for layer, _ in pairs):
        raise UserError(
            f"the term {name!r} compares one student state with {models.student.stride} tokens, but layer 0 "
            "(the embeddings) has one state per token",
            expected=f"layers 1 to {models.student.layers}",
            hint="to compare the embeddings, add a hidden_mse term with layer_map = [[0, 0]]",
        )
    _require_teacher_token_states(name, models, pairs)


def _require_teacher_token_states(name: str, models: ModelPair, pairs: LayerPairs) -> None:
    """Refuse teacher layers whose states cover several tokens."""
    if models.teacher.stride > 1 and any(layer for _, layer in pairs):
        raise UserError(
            f"the term {name!r} compares layers, but above the embeddings each state of the teacher "
            f"({models.teacher.family}) stands for {models.teacher.stride} tokens",
            expected=f"from such a teacher: {losses_for('works_without_layers')}",
            hint=f"drop the term with `terms.{name}.weight=0`, or choose another teacher",
        )


def widths_of(models: ModelPair, field: str) -> tuple[int, int]:
    """The widths of student and teacher that a field of EncoderSpec holds, such as `pooled_size`."""
    return getattr(models.student, field), getattr(models.teacher, field)


def hidden_widths(name: str, models: ModelPair, pairs: LayerPairs) -> tuple[int, int]:
    """Widths of the hidden states of student and teacher, which are the same for all pairs of a term.

    Raises:
        UserError: the pairs include both the embeddings and other layers of a model, and their widths differ.
    """
    for who, model, layers in zip(
        ("student", "teacher"), (models.student, models.teacher), zip(*pairs, strict=True), strict=True
    ):
        if len({model.width_of(layer) for layer in layers}) > 1:
            raise UserError(
                f"the term {name!r} compares the embeddings of the {who} ({model.family}), of width "
                f"{model.width_of(0)}, together with layers of width {model.hidden_size}",
                expected="pairs of layers of one width",
                hint="leave layer 0 out of this term (`hidden_knowledge`: with a smaller `depth`), and "
                "compare the embeddings in a term of their own: `hidden_mse` with layer_map = [[0, 0]]",
            )
    layer_s, layer_t = pairs[0]
    return models.student.width_of(layer_s), models.teacher.width_of(layer_t)


def vector_layers(name: str, vector: str, models: ModelPair) -> tuple[int, int]:
    """The last layers, whose first tokens a SampleTerm compares; (0, 0) for pooled vectors."""
    if vector == "pooled":
        return 0, 0
    return pairs_of(name, [(models.student.layers, models.teacher.layers)], models)[0]


def unread_cls(name: str, term: LossTerm, models: ModelPair, *, has_settings: bool = True) -> str | None:
    """Return a warning if a term compares first-token vectors that no head of a model reads, else None.

    Args:
        name: the name of the term.
        has_settings: False for a term that was passed as an object, which has no settings to change.
    """
    needs = (("student", term.student_need, models.student), ("teacher", term.teacher_need, models.teacher))
    pools_by_mean = [who for who, need, model in needs if need.cls and model.mean_pooled]
    if not pools_by_mean:
        return None
    advice = ""
    if has_settings and "row_vector" in type(term).Settings.model_fields:
        bi_encoder = not (models.student.offers.pooled and models.teacher.offers.pooled)
        readers = "with cross-encoders, " if bi_encoder and isinstance(term, SampleTerm) else ""
        advice = f"; {readers}`terms.{name}.row_vector=pooled` compares pooled vectors"
    return (
        f"the term {name!r} compares vectors of first tokens (`cls`), which no head of the "
        f"{' and the '.join(pools_by_mean)} reads, as the heads read the mean over tokens{advice}"
    )


def projections_of(name: str, kind: str, pairs: LayerPairs, widths: tuple[int, int]) -> Projections:
    """Build the projections of a term.

    Raises:
        UserError: `kind` is "none" and the widths differ.
    """
    if kind == "none" and widths[0] != widths[1]:
        raise UserError(
            f"the term {name!r} compares vectors of width {widths[0]} (student) and {widths[1]} (teacher) "
            "without a projection",
            hint=f"use `terms.{name}.projection=shared`",
        )
    return Projections(kind, pairs, *widths)


def require_same_heads(name: str, models: ModelPair) -> None:
    """Check that student and teacher have the same number of attention heads.

    Raises:
        UserError: they do not.
    """
    heads_s, heads_t = models.student.heads, models.teacher.heads
    if heads_s and heads_t and heads_s != heads_t:
        other = "" if models.student.stride > 1 else ", or the loss 'relation', which allows any number"
        raise UserError(
            f"the term {name!r} compares attention head by head, but "
            f"the student has {counted(heads_s, 'head')} and the teacher {heads_t}",
            expected=f"{counted(heads_t, 'head')}{other}",
            hint=f"use `student.{models.student.table}.heads={heads_t}`, or `terms.{name}.weight=0`",
        )


def require_offered(name: str, term: LossTerm, models: ModelPair, drop: str) -> None:
    """Refuse a term that needs an output that its student or teacher does not offer.

    Args:
        drop: how to train without the term, for hints.
    """
    for who, need, model in (
        ("teacher", term.teacher_need, models.teacher),  # first, since students read pairs as it does
        ("student", term.student_need, models.student),
    ):
        # Logits come from the task heads, which are checked elsewhere.
        if need.pooled and model.layers and not model.offers.pooled:
            raise _no_pooled_vectors(name, who, model, drop)
        missing = need.before_selection.missing_from(model.offers | LOGITS)
        if missing:
            raise UserError(
                f"the term {name!r} needs {', '.join(missing)} from the {who} ({model.family}), "
                "which it does not provide",
                hint=f"{drop}, or choose another {who}",
            )


def _no_pooled_vectors(name: str, who: str, model: EncoderSpec, drop: str) -> UserError:
    """The error for a term that compares pooled vectors of a bi-encoder."""
    settings = "{'pairs': 'cross-encoder'}"
    fix = (
        f"refine it with `settings={settings}`"
        if who == "teacher"
        else "use `student.transformer.pairs=cross-encoder`"
    )
    return UserError(
        f"the term {name!r} compares pooled vectors (`OutputSpec(pooled=True)`), but the {who} "
        f"({model.family}) is a bi-encoder, which reads the two texts of a row separately and has no such "
        "vector for both",
        expected=f"tasks with one text, or a {who} that reads both texts as one sequence (a cross-encoder)",
        hint=f"{fix}, or {drop}",
    )
