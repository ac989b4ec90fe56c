"""Scoring a generator on held-out prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from augment.questions.generation.decoder import Decoder
from augment.questions.generation.decoding import Prompt, Strategy, decode
from augment.questions.generator import Reading
from augment.questions.training.prompts import EncodedPrompt, ReferenceQuestions, encode
from augment.questions.training.sequence_loss import batch_loss
from augment.questions.training.text_scores import bleu, rouge_l
from tasks.common.progress import progress


@dataclass(frozen=True)
class Sample:
    """The beginning of a held-out context, one of its reference questions, and the generated question."""

    context: str
    asked: str
    written: str


@dataclass(frozen=True)
class GeneratorScores:
    """Scores on `prompts` held-out prompts with `questions` questions; BLEU and ROUGE-L in per cent."""

    perplexity: float
    bleu: float
    rouge_l: float
    prompts: int
    questions: int


@torch.inference_mode()
def score_generator(
    model: Any, tokenizer: Any, held_out: list[ReferenceQuestions], reading: Reading
) -> tuple[GeneratorScores, list[Sample]]:
    """Score the model on held-out prompts; returns the scores and a few samples."""
    encoded = encode(tokenizer, held_out, reading.max_input, reading.max_output)
    perplexity = _perplexity(model.eval(), encoded, tokenizer.pad_token_id)
    answers = _greedy(model, encoded, reading.max_output)
    written = tokenizer.batch_decode(answers, skip_special_tokens=True)
    references = [reference.questions for reference in held_out]
    scores = GeneratorScores(
        perplexity=round(perplexity, 3),
        bleu=round(bleu(references, written), 2),
        rouge_l=round(rouge_l(references, written), 2),
        prompts=len(held_out),
        questions=sum(map(len, references)),
    )
    shown = range(0, len(held_out), max(1, len(held_out) // 5))
    samples = [Sample(held_out[n].context[:160], held_out[n].questions[0], written[n]) for n in shown]
    return scores, samples[:5]


def _perplexity(model: Any, encoded: list[EncodedPrompt], pad: int) -> float:
    """exp of the mean loss per token."""
    order = sorted(encoded, key=lambda prompt: len(prompt.prompt))
    total, tokens = 0.0, 0
    with progress("perplexity", len(order), unit="prompts") as advance:
        for start in range(0, len(order), 16):
            part = order[start : start + 16]
            count = sum(len(question) for prompt in part for question in prompt.questions)
            total += float(batch_loss(model, part, pad, "fp32")) * count
            tokens += count
            advance(len(part))
    return math.exp(min(total / tokens, 50))


def _greedy(model: Any, encoded: list[EncodedPrompt], limit: int) -> list[list[int]]:
    decoder = Decoder(model)
    answers: list[list[int]] = []
    with progress("greedy questions", len(encoded), unit="prompts") as advance:
        for start in range(0, len(encoded), 256):
            part = [Prompt(tuple(prompt.prompt)) for prompt in encoded[start : start + 256]]
            answers += [questions[0] for questions in decode(decoder, part, Strategy(limit=limit), 32)]
            advance(len(part))
    return answers
