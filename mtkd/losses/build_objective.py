"""From a recipe's terms to an objective; all that sizes can tell is checked here, before any weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mtkd.losses.attention import AttentionKL, ScoreMSE
from mtkd.losses.base import LossTerm
from mtkd.losses.compatibility import (
    ModelPair,
    hidden_widths,
    pairs_of,
    projections_of,
    require_same_heads,
    widths_of,
)
from mtkd.losses.contrastive import SampleContrastive
from mtkd.losses.hidden import ClsMSE, HiddenCosine, HiddenMSE
from mtkd.losses.hidden_knowledge import HiddenKnowledge
from mtkd.losses.layer_maps import spread
from mtkd.losses.layered import Projections
from mtkd.losses.logits import Labels, LogitsMSE, SoftLabels
from mtkd.losses.objective import Objective
from mtkd.losses.pooled import PooledHiddenMSE, PooledScoreMSE
from mtkd.losses.relations import Relation, SampleSimilarity, TokenSimilarity
from mtkd.losses.settings import LabelsSettings, Term
from mtkd.outputs import EncoderSpec, OutputSpec
from mtkd.selection import Selection
from tasks.errors import UserError
from tasks.task import Task

NO_TEACHER = EncoderSpec("none", 0, 0, 0, 0, 0, OutputSpec())


def _hidden_mse(name: str, s: Any, models: ModelPair) -> LossTerm:
    pairs = pairs_of(name, s.layers, models)
    widths = widths_of(models, "attention") if s.of == "context" else hidden_widths(models, pairs)
    return HiddenMSE(pairs, s.of, projections_of(name, s.projection, pairs, widths), s.layers == "emd")


def _hidden_knowledge(name: str, s: Any, models: ModelPair) -> LossTerm:
    pairs_of(name, [(0, 0)], models)
    n, last = models.student.layers, models.teacher.layers
    top, depth = s.top or last, s.depth or n + 1
    for key, value, least, most in (("top", top, n, last), ("depth", depth, 1, n + 1)):
        if not least <= value <= most:
            raise UserError(
                f"terms.{name}.{key} = {value}, with {n} student layers and {last} teacher layers",
                expected=f"{least} to {most}",
                hint=f"--set terms.{name}.{key}=N",
            )
    pairs = pairs_of(name, [(0, 0), *spread(f"top:{top}", n, last)][n + 1 - depth :], models)
    scored: list[tuple[int, int]] = []
    if s.tokens is not None and s.by != "left":
        ranking = dict([(0, 0), *spread(f"top:{last if s.by == 'att-last-no-sep' else top}", n, last)])
        # The embedding layer has no attention: the first layer's stands in for it.
        scored = [(theirs, max(1, ranking[mine])) for mine, theirs in pairs]
    selection = Selection(s.tokens, s.by, s.width, s.units, tuple(scored))
    widths = hidden_widths(models, pairs)
    return HiddenKnowledge(pairs, selection, projections_of(name, s.projection, pairs, widths))


def _hidden_cosine(name: str, s: Any, models: ModelPair) -> LossTerm:
    pairs = pairs_of(name, s.layers, models)
    projection = projections_of(name, s.projection, pairs, hidden_widths(models, pairs))
    return HiddenCosine(pairs, projection, s.layers == "emd")


def _cls_mse(name: str, s: Any, models: ModelPair) -> LossTerm:
    if s.layers == "emd":
        raise UserError(
            f"the term {name!r} (cls_mse) cannot weigh layers by the earth mover's distance",
            expected="uniform, skip, last, first, top:L, auto, or pairs",
        )
    pairs = pairs_of(name, s.layers, models)
    if not s.include_last:
        pairs = [pair for pair in pairs if pair[0] != models.student.layers]
    if not pairs:
        raise UserError(
            f"the term {name!r} leaves out the student's last layer, and it has no other",
            hint=f"--set terms.{name}.include_last=true, or a deeper student",
        )
    return ClsMSE(pairs, projections_of(name, s.projection, pairs, widths_of(models, "width")))


def _attention_kl(name: str, s: Any, models: ModelPair) -> LossTerm:
    pairs = pairs_of(name, s.layers, models)
    require_same_heads(name, models)
    return AttentionKL(pairs, s.layers == "emd")


def _score_mse(name: str, s: Any, models: ModelPair) -> LossTerm:
    pairs = pairs_of(name, s.layers, models)
    require_same_heads(name, models)
    return ScoreMSE(pairs, s.layers == "emd")


def _pooled_hidden_mse(name: str, s: Any, models: ModelPair) -> LossTerm:
    pairs = pairs_of(name, s.layers, models, pooled=True)
    projection = projections_of(name, s.projection, pairs, hidden_widths(models, pairs))
    return PooledHiddenMSE(pairs, models.student.stride, projection, s.layers == "emd")


def _pooled_score_mse(name: str, s: Any, models: ModelPair) -> LossTerm:
    pairs = pairs_of(name, s.layers, models, pooled=True)
    require_same_heads(name, models)
    return PooledScoreMSE(pairs, models.student.stride, s.layers == "emd")


def _relation(name: str, s: Any, models: ModelPair) -> LossTerm:
    pairs = pairs_of(name, s.layers, models)
    splits = s.splits or models.student.heads
    letters = set("".join(s.pairs)) - {"-"}
    regrouped = s.heads != "concat-split"
    for who, shape in (("student", models.student), ("teacher", models.teacher)):
        for letter in letters:
            width = shape.width if letter == "h" else shape.attention
            if regrouped and shape is models.teacher:
                width = shape.heads if letter != "h" else 0
            if not width or width % splits:
                what = "attention heads" if regrouped and shape is models.teacher else "a width"
                raise UserError(
                    f"the term {name!r} splits vectors into {splits} relation heads, "
                    f"and the {who} has {what} of {width}",
                    expected=f"a number that divides it: {_divisors(width)}",
                    hint=f"--set terms.{name}.splits=N",
                )
    return Relation(pairs, s.pairs, splits, s.heads, models.teacher.heads, s.layers == "emd")


def _token_similarity(name: str, s: Any, models: ModelPair) -> LossTerm:
    pairs_of(name, [(0, 0)], models)
    return TokenSimilarity()


def _sample_similarity(name: str, s: Any, models: ModelPair) -> LossTerm:
    return SampleSimilarity(s.vector, *_vector_layers(name, s.vector, models))


def _sample_contrastive(name: str, s: Any, models: ModelPair) -> LossTerm:
    for task in models.tasks:
        if not task.type.has_classes(s.bins) and (s.kinds is None or task.kind in s.kinds):
            binned = f"--set terms.{name}.bins=5 sorts the scores into classes; "
            raise UserError(
                f"the term {name!r} contrasts classes, and {task.name!r} has {task.type.outputs}",
                hint=(binned if task.type.has_classes(5) else "")
                + f'--set \'terms.{name}.kinds=["classify", "rank"]\' leaves such tasks out of the term',
            )
    of = "pooled" if s.vector == "pooled" else "width"
    widths = widths_of(models, of)
    layers = _vector_layers(name, s.vector, models)
    projection = Projections("shared", [layers], *widths)
    return SampleContrastive(s.vector, *layers, projection, s.temperature, s.normalize, s.bins)


# To add a loss: its term here, and its settings in mtkd/terms.py. A builder gets the term's name and
# settings, and the shapes of both models.
LOSSES: dict[str, Callable[[str, Any, ModelPair], LossTerm]] = {
    "labels": lambda name, s, models: Labels(),
    "logits_mse": lambda name, s, models: LogitsMSE(),
    "soft_labels": lambda name, s, models: SoftLabels(s.temperature),
    "hidden_mse": _hidden_mse,
    "hidden_knowledge": _hidden_knowledge,
    "hidden_cosine": _hidden_cosine,
    "cls_mse": _cls_mse,
    "score_mse": _score_mse,
    "pooled_hidden_mse": _pooled_hidden_mse,
    "pooled_score_mse": _pooled_score_mse,
    "attention_kl": _attention_kl,
    "relation": _relation,
    "token_similarity": _token_similarity,
    "sample_similarity": _sample_similarity,
    "sample_contrastive": _sample_contrastive,
}


def build_objective(
    terms: Mapping[str, Term],
    student: EncoderSpec,
    teacher: EncoderSpec | None,
    tasks: Iterable[Task],
    slow_build: float = 0.0,
) -> Objective:
    """The objective of a stage, its projections fresh; the caller seeds torch.

    Args:
        terms: name -> term settings.
        teacher: None where there is none.
        tasks: all that the stage meets.
        slow_build: see DistillSettings.

    Raises:
        UserError: a term that does not fit the sizes of student and teacher, or needs what one does not give.
    """
    models = ModelPair(student, teacher or NO_TEACHER, tuple(tasks))
    built = {name: LOSSES[s.loss](name, s, models) for name, s in terms.items()}  # type: ignore[attr-defined]
    for name, term in built.items():
        for who, need, shape in (
            ("student", term.student_need, student),
            ("teacher", term.teacher_need, models.teacher),
        ):
            # Logits are a matter of heads, which are checked where they are known.
            missing = need.raw.missing_from(shape.offers | OutputSpec(logits=True))
            if missing:
                raise UserError(
                    f"the term {name!r} needs {', '.join(missing)} of the {who} ({shape.family}), "
                    "which it does not give",
                    hint=f"drop the term with --set terms.{name}.weight=0, or choose another {who}",
                )
    return Objective(built, terms, slow_build)


def labels_objective() -> Objective:
    """The tasks' own losses on labels, and nothing else."""
    return Objective({"labels": Labels()}, {"labels": LabelsSettings(loss="labels")})


def _vector_layers(name: str, vector: str, models: ModelPair) -> tuple[int, int]:
    """The last layers, whose first tokens are compared; (0, 0) where the heads' vectors are."""
    return (
        (0, 0)
        if vector == "pooled"
        else pairs_of(name, [(models.student.layers, models.teacher.layers)], models)[0]
    )


def _divisors(width: int) -> str:
    return ", ".join(str(n) for n in range(1, width + 1) if width % n == 0) or "none"
