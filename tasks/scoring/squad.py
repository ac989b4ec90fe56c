"""SQuAD scoring (Rajpurkar et al.): exact match, token F1, and the threshold for "no answer".

Answers of a task that names its languages are compared as in MLQA (Lewis et al. 2020).
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

_ARTICLES = {
    "en": "a an the",
    "de": "ein eine einen einem eines einer der die das den dem des",
    "es": "un una unos unas el la los las",
    "vi": "của là cái chiếc những",
}
_ARTICLE = {
    language: re.compile(rf"\b({words.replace(' ', '|')})\b") for language, words in _ARTICLES.items()
}
_ARTICLE["ar"] = re.compile("ال")  # a prefix; MLQA removes it anywhere in a word
_HAN = re.compile("([\u4e00-\u9fa5])")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str, language: str | None = None) -> str:
    """Lower-case, remove punctuation and articles, and collapse white space.

    Args:
        language: None = SQuAD's rule: ASCII punctuation and English articles. Otherwise MLQA's: punctuation
            of any script, the articles of the language (en, de, es, vi, ar; others have none), and each
            Chinese character ("zh") is a word.
    """
    bare = text.lower().translate(_PUNCTUATION)
    if language is not None:
        bare = "".join(c for c in bare if not unicodedata.category(c).startswith("P"))
    if (article := _ARTICLE.get(language or "en")) is not None:
        bare = article.sub(" ", bare)
    if language == "zh":
        bare = _HAN.sub(r" \1 ", bare)
    return " ".join(bare.split())


def exact_match(answer: str, golds: Sequence[str], language: str | None = None) -> float:
    """1.0 if the normalised answer equals a normalised gold answer, else 0.0."""
    return float(
        any(normalise_answer(answer, language) == normalise_answer(gold, language) for gold in golds)
    )


def token_f1(answer: str, golds: Sequence[str], language: str | None = None) -> float:
    """The best F1 over the gold answers, computed on bags of normalised tokens.

    Against "no answer" the F1 is 1.0 if both are empty, else 0.0.
    """
    words = normalise_answer(answer, language).split()
    return max(_f1(words, normalise_answer(gold, language).split()) for gold in golds)


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    same = sum((Counter(answer) & Counter(gold)).values())
    return 2 * same / (len(answer) + len(gold))


def gold_answers(answers: pa.StructArray, language: str | None = None) -> list[list[str]]:
    """The gold answers of each row; [""] if there are none, or none after normalisation."""
    texts = answers.field("text").to_pylist()
    return [[gold for gold in golds if normalise_answer(gold, language)] or [""] for golds in texts]


@dataclass(frozen=True)
class SpanScores:
    """Exact match and F1 over all rows.

    Attributes:
        by_kind: separate scores of rows with and without an answer, if there are both.
        threshold: "no answer" was predicted if it led the best span by more than this; None: never.
    """

    exact_match: float
    f1: float
    by_kind: dict[str, float]
    threshold: float | None


def score_texts(
    texts: Sequence[str],
    golds: Sequence[Sequence[str]],
    threshold: float | None,
    language: str | None = None,
) -> SpanScores:
    """Score one answer per row; "" means "no answer"."""
    exact = np.array([exact_match(text, gold, language) for text, gold in zip(texts, golds, strict=True)])
    f1 = np.array([token_f1(text, gold, language) for text, gold in zip(texts, golds, strict=True)])
    has = np.array([list(gold) != [""] for gold in golds])
    by_kind = {}
    if has.any() and not has.all():
        by_kind = {
            "has_answer_exact_match": float(exact[has].mean()),
            "has_answer_f1": float(f1[has].mean()),
            "no_answer_accuracy": float(exact[~has].mean()),
        }
    return SpanScores(float(exact.mean()), float(f1.mean()), by_kind, threshold)


def best_threshold(lead: np.ndarray, spans: np.ndarray, nulls: np.ndarray) -> float:
    """The threshold with the highest total score; a span is predicted if `lead` is at most the threshold.

    Args:
        lead: (n,) how much higher "no answer" scores than the best span.
        spans, nulls: (n,) the metric if the span, or "no answer", is predicted.

    Returns:
        A value halfway between two rows; the highest (most spans) of equally good ones.
    """
    order = np.argsort(lead, kind="stable")
    totals = nulls.sum() + np.concatenate([[0.0], np.cumsum((spans - nulls)[order])])
    sorted_lead = lead[order]
    cut = np.concatenate([[True], np.diff(sorted_lead) > 0, [True]])  # equal leads cannot be separated
    best = int(np.flatnonzero(cut & (totals >= totals[cut].max() - 1e-12))[-1])
    edges = np.concatenate([[sorted_lead[0] - 1.0], sorted_lead, [sorted_lead[-1] + 1.0]])
    return float((edges[best] + edges[best + 1]) / 2)
