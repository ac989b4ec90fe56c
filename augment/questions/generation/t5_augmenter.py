"""The augmenter "questions" of a T5: questions about paragraphs, written by a trained generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from augment.augmenter import Augmenter, Copies
from augment.questions.generation.answer_candidates import load_spacy
from augment.questions.generation.batch_size import BatchSize
from augment.questions.generation.generate import Decode, QuestionOptions, decode_questions
from augment.questions.generator import Generator
from augment.questions.question_rows import QuestionRow, question_table
from tasks.common.errors import UserError
from tasks.data.corpus_reader import QUESTION_SCHEMA
from tasks.data.rows import Rows

_CHUNK = 256  # paragraphs that are sorted by length and decoded together
_MAX_QUESTIONS = 100  # questions per paragraph, and beams
_ABOUT = (
    "The questions were generated from paragraphs by a T5 that was fine-tuned to write questions (WaLDORf, "
    "Tian et al. 2019). A question depends only on the model, the settings, the seed and the paragraph. "
    "{counts}"
)


@dataclass(frozen=True)
class T5Questions(Augmenter):
    """Generate questions about paragraphs; the two texts of a row are the paragraph and its source.

    Attributes:
        generator: the loaded T5; `digest`: the digest of its weights and tokeniser.
        decode: the backend's decoding function; `backend`: its name in `BACKENDS`, for the manifest.
        words: the word range of the paragraphs, for the manifest; `counts`: how many were used, for the card.
        loader: loads the generator in another process.
    """

    generator: Generator
    digest: str
    options: QuestionOptions
    decode: Decode
    backend: str = "native"
    precision: str = "fp32"
    words: str = "any"
    counts: str = ""
    loader: Callable[[], Augmenter] | None = None

    name = "questions"
    kind = "questions"
    schema = QUESTION_SCHEMA

    @property
    def description(self) -> str:
        """How the questions were made, with the paragraph counts."""
        return _ABOUT.format(counts=self.counts).strip()

    @property
    def settings(self) -> dict[str, float | int | str]:
        """All settings that affect the questions, by name."""
        reading, strategy = self.options.reading, self.options.strategy
        drawn: dict[str, float | int | str] = (
            {"temperature": strategy.temperature, "top_p": strategy.top_p} if strategy.sample else {}
        )
        return {
            "model": self.generator.name,
            "model_digest": self.digest,
            "format": reading.form,
            "max_input": reading.max_input,
            "max_output": strategy.limit,
            "decoding": "sample" if strategy.sample else "beams" if strategy.beams > 1 else "greedy",
            "beams": strategy.beams,
            **drawn,
            "seed": self.options.seed,
            "answers": (self.options.spacy or "rule") if reading.format.uses_answer else "none",
            "engine": self.backend,
            "precision": self.precision,
            "words": self.words,
        }

    def make_copies(self, rows: Rows, copies: int) -> Iterator[Copies]:
        """Yield up to `copies` questions about each of `rows`."""
        for start in range(0, len(rows), _CHUNK):
            part = rows.take(np.arange(start, min(start + _CHUNK, len(rows))))
            uids, contexts, sources = (column.to_pylist() for column in (part.uids, *part.texts))
            questions = decode_questions(self.generator.tokenizer, self.decode, self.options, uids, contexts)
            question_rows = [
                QuestionRow(rows.task, uid, n, q.text, context, self.name, source, asked_for=q.asked_for)
                for uid, context, source, of_row in zip(uids, contexts, sources, questions, strict=True)
                for n, q in enumerate(of_row, 1)
            ]
            yield Copies(question_table(question_rows), 0, 0, 0)


def check_question_options(options: QuestionOptions, backend: str, precision: str) -> None:
    """Check that the settings can produce the requested questions and that the packages are installed.

    Raises:
        UserError: the settings contradict each other, or spaCy, its pipeline or the backend is missing.
    """
    strategy, form = options.strategy, options.reading.format
    if not (1 <= strategy.beams <= _MAX_QUESTIONS and 1 <= options.count <= _MAX_QUESTIONS):
        raise UserError(
            f"`beams={strategy.beams}`, `per_paragraph={options.count}`: out of range",
            expected=f"1 to {_MAX_QUESTIONS} of each",
        )
    if strategy.sample and strategy.beams > 1:
        raise UserError("`sample=True` cannot be combined with `beams`", expected="only one of the two")
    if strategy.sample and not (strategy.temperature > 0 and 0 < strategy.top_p <= 1):
        raise UserError(
            f"`temperature={strategy.temperature}`, `top_p={strategy.top_p}`: out of range",
            expected="a temperature above 0, 0 < top-p <= 1",
        )
    if not form.uses_answer and options.count > 1 and not strategy.sample and strategy.beams < options.count:
        raise UserError(
            f"greedy decoding cannot generate {options.count} different questions per paragraph",
            hint=f"use `sample=True`, at least `beams={options.count}`, or a model trained with "
            "`format='sentence'`",
        )
    if backend == "ctranslate2":
        from augment.questions.generation.ctranslate import check_installed

        check_installed()
        if precision == "bf16":
            raise UserError(
                f"`precision={precision!r}` has no effect with `backend='ctranslate2'`, which is int8",
                hint="leave `precision` out, or use `backend='native'`",
            )
        if strategy.sample:
            raise UserError(
                "`sample=True` cannot be used with `backend='ctranslate2'`, because its sampling cannot be "
                "seeded per paragraph",
                hint="use `beams`, or `backend='native'`",
            )
    if form.uses_answer and options.spacy:
        load_spacy(options.spacy)


def _native(generator: Generator, batch_size: BatchSize, precision: str) -> Decode:
    from augment.questions.generation.decoder import Decoder
    from augment.questions.generation.decoding import decode

    decoder = Decoder(generator.model, precision)
    return lambda prompts, strategy: decode(decoder, prompts, strategy, batch_size)


def _ctranslate2(generator: Generator, batch_size: BatchSize, precision: str) -> Decode:
    from augment.questions.generation.ctranslate import open_engine

    return open_engine(generator)


BACKENDS: dict[str, Callable[[Generator, BatchSize, str], Decode]] = {
    "native": _native,
    "ctranslate2": _ctranslate2,
}
