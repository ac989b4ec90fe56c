"""The augmenter of a trained T5: its options are validated, and paragraphs selected that it can read."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from augment.questions.generation.batch_size import choose_batch_size
from augment.questions.generation.config import GenerationConfig
from augment.questions.generation.decoding import Strategy
from augment.questions.generation.generate import QuestionOptions, readable
from augment.questions.generation.paragraphs import Counts, Paragraph
from augment.questions.generation.precision import choose_precision
from augment.questions.generation.t5_augmenter import BACKENDS, T5Questions, check_question_options
from augment.questions.generator import (
    Generator,
    Reading,
    digest_generator,
    load_config_and_tokeniser,
    load_generator,
)
from mtkd.device import worker_device
from mtkd.output_files.worker_pools import other_model, path_for_workers


@dataclasses.dataclass(frozen=True)
class ReadableOnly:
    """Drops paragraphs of which no sentence fits the generator `model`, and counts the shortened ones."""

    model: str
    reading: Reading

    def __call__(self, paragraphs: list[Paragraph]) -> tuple[list[Paragraph], Counts]:
        """The paragraphs that fit, and how many were shortened or left out."""
        texts = [paragraph.text for paragraph in paragraphs]
        shown = list(zip(paragraphs, readable(_tokenizer_of(self.model), texts, self.reading), strict=True))
        usable = [paragraph for paragraph, text in shown if text is not None]
        shortened = sum(text is not None and text != paragraph.text for paragraph, text in shown)
        return usable, Counts(shortened=shortened, too_long=len(paragraphs) - len(usable))


@functools.cache
def _tokenizer_of(model: str) -> Any:
    return load_config_and_tokeniser(model)[1]


@dataclasses.dataclass(frozen=True)
class PreparedT5:
    """A loaded generator with its validated options."""

    config: GenerationConfig
    generator: Generator
    options: QuestionOptions

    @staticmethod
    def load(config: GenerationConfig) -> PreparedT5:
        """Load the generator; UserError if it or an option cannot be used."""
        generator = load_generator(
            config.model, form=config.form, max_input=config.max_input, max_output=config.max_output
        )
        strategy = Strategy(
            config.beams, config.sample, config.temperature, config.top_p, generator.reading.max_output
        )
        options = QuestionOptions(
            generator.reading, strategy, config.seed, config.per_paragraph, config.spacy
        )
        check_question_options(options, config.backend, config.precision)
        return PreparedT5(config, generator, options)

    @property
    def usable(self) -> ReadableOnly:
        """Drops paragraphs that do not fit the generator."""
        return ReadableOnly(path_for_workers(self.config.model), self.options.reading)

    def augmenter(self, counts: Counts, device: Any) -> T5Questions:
        """The augmenter, with the model on a device."""
        config, generator = self.config, self.generator
        strategy = self.options.strategy
        generator.model.to(device)
        precision = choose_precision(config.precision, config.backend, device)
        batch_size = choose_batch_size(
            config.batch, generator.model, generator.reading.max_input, strategy.beams, strategy.limit
        )
        digest = digest_generator(generator)
        worker_config = dataclasses.replace(
            config,
            model=path_for_workers(config.model),
            precision=precision,
            **dataclasses.asdict(generator.reading),
        )
        return T5Questions(
            generator,
            digest,
            self.options,
            BACKENDS[config.backend](generator, batch_size, precision),
            config.backend,
            precision,
            str(config.words or "any"),
            counts.sentence(),
            functools.partial(_load_in_worker, worker_config, digest, counts),
        )


def _load_in_worker(config: GenerationConfig, digest: str, counts: Counts) -> T5Questions:
    """Load the generator in another process."""
    augmenter = PreparedT5.load(config).augmenter(counts, worker_device())
    if augmenter.digest != digest:
        raise other_model(config.model)
    return augmenter
