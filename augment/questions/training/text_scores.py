"""Text scores of generated questions: BLEU and ROUGE-L."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Words and punctuation marks, in lower case."""
    return _WORD.findall(text.lower())


def bleu(references: Sequence[Sequence[str]], written: Sequence[str]) -> float:
    """Corpus BLEU-4 in per cent with several references per question (nltk, smoothing method 1)."""
    from nltk.translate.bleu_score import SmoothingFunction, corpus_bleu

    reference_words = [[words(text) for text in texts] for texts in references]
    written_words = [words(text) for text in written]
    return 100 * float(
        corpus_bleu(reference_words, written_words, smoothing_function=SmoothingFunction().method1)
    )


def rouge_l(references: Sequence[Sequence[str]], written: Sequence[str]) -> float:
    """Mean ROUGE-L F1 in per cent (Lin 2004, beta = 1), taking the best reference of each question."""
    best = [
        max(_rouge(words(reference), words(text)) for reference in texts)
        for texts, text in zip(references, written, strict=True)
    ]
    return 100 * sum(best) / len(best)


def _rouge(reference: list[str], written: list[str]) -> float:
    """The F1 of the longest common subsequence: twice its length, divided by the sum of both lengths."""
    row = [0] * (len(written) + 1)
    for word in reference:
        previous, row = row, [0]
        for index, other in enumerate(written):
            row.append(previous[index] + 1 if word == other else max(row[-1], previous[index + 1]))
    return 2 * row[-1] / max(len(reference) + len(written), 1)
