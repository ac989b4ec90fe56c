"""Settings of the loss terms that a recipe may name; what they compute is in `mtkd/losses/`."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt

from mtkd.selection import TokenRule, UnitRule
from tasks.task import Kind


class Strict(BaseModel):
    """Settings in which an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


# Points [share of the stage's steps, value] with straight lines between them; two points at one share are a
# jump.
Points = list[tuple[float, float]]


def _weight(value: float | Points) -> float | Points:
    """a number of 0 or more, or points [share of the steps, value]"""
    points = [(0.0, value)] if isinstance(value, int | float) else value
    if not points or any(y < 0 for _, y in points):
        raise ValueError("a number of 0 or more, or points [share of the steps, value]")
    if any(not 0 <= x <= 1 for x, _ in points) or any(a > b for (a, _), (b, _) in pairwise(points)):
        raise ValueError("points are [share of the steps, value], the shares rising from 0 to 1")
    return value


def _temperature(value: float | Points) -> float | Points:
    """a number above 0, or points [share of the steps, value]"""
    if value == 0 or (not isinstance(value, int | float) and any(y == 0 for _, y in value)):
        raise ValueError("a temperature is above 0")
    return _weight(value)


def _layers(value: str | list[tuple[int, int]]) -> str | list[tuple[int, int]]:
    """uniform | skip | last | first | top:L | auto | emd, or pairs such as [[1, 3], [2, 6]]"""
    if not value or (isinstance(value, str) and not re.fullmatch(_LAYER_MAPS, value)):
        raise ValueError("uniform, skip, last, first, top:L, auto, emd, or pairs such as [[1, 3], [2, 6]]")
    return value


_LAYER_MAPS = r"uniform|skip|last|first|auto|emd|top:\d+"
Schedule = Annotated[float | Points, AfterValidator(_weight)]
Temperature = Annotated[float | Points, AfterValidator(_temperature)]
LayerMap = Annotated[str | list[tuple[int, int]], AfterValidator(_layers)]
# `--set terms.X.projection=none` arrives as "no value", which is what it means.
Projection = Annotated[
    Literal["shared", "per-layer", "none"], BeforeValidator(lambda value: "none" if value is None else value)
]
Pair = Annotated[str, Field(pattern=r"^[qkvoh]-[qkvoh]$")]


def value_at(schedule: float | Points, share: float) -> float:
    """The value of a schedule once `share` (0 to 1) of the steps is done."""
    if isinstance(schedule, int | float):
        return float(schedule)
    before = [point for point in schedule if point[0] <= share]
    after = [point for point in schedule if point[0] > share]
    if not before or not after:
        return (before or after)[-1 if before else 0][1]
    (x0, y0), (x1, y1) = before[-1], after[0]
    return y0 + (y1 - y0) * (share - x0) / (x1 - x0)


def is_zero(schedule: float | Points) -> bool:
    """True if the value is 0 all the time."""
    return not schedule if isinstance(schedule, int | float) else not any(value for _, value in schedule)


class Term(Strict):
    """What every term has.

    Attributes:
        weight: factor in the objective, or points over the steps.
        kinds: kinds of task that the term is for; None = all.
    """

    weight: Schedule = 1.0
    kinds: list[Kind] | None = None


class LabelsSettings(Term):
    """The task's own loss on labels."""

    loss: Literal["labels"]


class LogitsMSESettings(Term):
    """MSE of logits (MKD)."""

    loss: Literal["logits_mse"]


class SoftLabelsSettings(Term):
    """T² KL of softened probabilities; MSE where the task is a score."""

    loss: Literal["soft_labels"]
    temperature: Temperature = 1.0


class HiddenMSESettings(Term):
    """MSE of hidden states, summed over the map's layers (TinyBERT, MLKD-BERT, BERT-EMD).

    Attributes:
        of: `hidden` states, or the attention heads' `context` vectors.
        projection: one matrix for all layers (`shared`), one each (`per-layer`), or `none` (equal widths).
    """

    loss: Literal["hidden_mse"]
    of: Literal["hidden", "context"] = "hidden"
    layers: LayerMap = "uniform"
    projection: Projection = "shared"


class HiddenKnowledgeSettings(Term):
    """MSE of the part of the teacher's hidden states that is kept (Liu et al. 2021), summed over layers.

    Attributes:
        top: L_top, the teacher layer that the student's last looks at; None = the last. The others are spread
            evenly below it, the embeddings look at the embeddings.
        depth: N_D, how many of these pairs are kept, from the top; None = all.
        tokens: N_L, the most tokens kept of a row; None = all.
        by: which tokens: the first (`left`), or those that [CLS] attends to most: at the pair's own teacher
            layer (`att`, and `att-no-sep` without [SEP]), or as if `top` were the last layer
            (`att-last-no-sep`).
        width: N_W, the share of the activations kept.
        units: which: the largest of each vector (`magnitude`), or the same of all (`uniform`, `random`).
    """

    loss: Literal["hidden_knowledge"]
    top: PositiveInt | None = None
    depth: PositiveInt | None = None
    tokens: PositiveInt | None = None
    by: TokenRule = "att-last-no-sep"
    width: float = Field(1.0, gt=0, le=1)
    units: UnitRule = "magnitude"
    projection: Projection = "shared"


class HiddenCosineSettings(Term):
    """1 - cosine of hidden states, summed over the map's layers (DistilBERT)."""

    loss: Literal["hidden_cosine"]
    layers: LayerMap = "auto"
    projection: Projection = "none"


class ClsMSESettings(Term):
    """MSE of normalised first-token vectors (BERT-PKD).

    Attributes:
        include_last: False leaves the student's last layer out, as the paper does.
    """

    loss: Literal["cls_mse"]
    layers: LayerMap = "skip"
    include_last: bool = False
    projection: Projection = "none"


class ScoreMSESettings(Term):
    """MSE of attention scores before the softmax (TinyBERT); equal numbers of heads."""

    loss: Literal["score_mse"]
    layers: LayerMap = "uniform"


class PooledHiddenMSESettings(Term):
    """MSE of hidden states with the mean of the teacher's over the tokens that each stands for (WaLDORf)."""

    loss: Literal["pooled_hidden_mse"]
    layers: LayerMap = "uniform"
    projection: Literal["shared", "per-layer", "none"] = "shared"


class PooledScoreMSESettings(Term):
    """MSE of attention scores with the teacher's largest of each window (WaLDORf); equal numbers of heads."""

    loss: Literal["pooled_score_mse"]
    layers: LayerMap = "uniform"


class AttentionKLSettings(Term):
    """KL of attention distributions (MiniLM); equal numbers of heads."""

    loss: Literal["attention_kl"]
    layers: LayerMap = "auto"


class RelationSettings(Term):
    """KL of scaled dot-product relations between vectors of all heads, summed over pairs and layers.

    Attributes:
        pairs: of q(uery), k(ey), v(alue), o (context vectors) and h(idden states).
        splits: relation heads; None = the student's attention heads.
        heads: how the teacher's attention heads become splits: side by side (`concat-split`), their
            `average`, or one at `random` (MLKD-BERT table 5).
    """

    loss: Literal["relation"]
    pairs: list[Pair] = Field(["q-q", "k-k", "v-v"], min_length=1)
    splits: PositiveInt | None = None
    layers: LayerMap = "auto"
    heads: Literal["concat-split", "average", "random"] = "concat-split"


class TokenSimilaritySettings(Term):
    """KL of the embedding layer's token similarities (MLKD-BERT)."""

    loss: Literal["token_similarity"]


class SampleSimilaritySettings(Term):
    """KL of the similarities between a batch's rows (MLKD-BERT).

    Attributes:
        vector: a row's vector: the last layer's first token (`cls`), or what the heads read (`pooled`).
    """

    loss: Literal["sample_similarity"]
    vector: Literal["cls", "pooled"] = "cls"


class SampleContrastiveSettings(Term):
    """Supervised contrast between rows of student and teacher (MLKD-BERT).

    Attributes:
        normalize: False leaves the vectors as long as they are.
        bins: classes that the scores of a `regress` task are sorted into; None = such tasks are refused.
    """

    loss: Literal["sample_contrastive"]
    vector: Literal["cls", "pooled"] = "cls"
    temperature: float = Field(0.07, gt=0)
    normalize: bool = True
    bins: int | None = Field(None, gt=1)


AnyTermSettings = (
    LabelsSettings
    | LogitsMSESettings
    | SoftLabelsSettings
    | HiddenMSESettings
    | HiddenKnowledgeSettings
    | HiddenCosineSettings
    | ClsMSESettings
    | ScoreMSESettings
    | PooledHiddenMSESettings
    | PooledScoreMSESettings
    | AttentionKLSettings
    | RelationSettings
    | TokenSimilaritySettings
    | SampleSimilaritySettings
    | SampleContrastiveSettings
)
TermSettings = Annotated[AnyTermSettings, Field(discriminator="loss")]

_KINDS: tuple[type[Term], ...] = get_args(AnyTermSettings)
LOSS_NAMES = [get_args(kind.model_fields["loss"].annotation)[0] for kind in _KINDS]
TERM_KEYS = list(dict.fromkeys(key for kind in _KINDS for key in ("loss", *kind.model_fields)))
