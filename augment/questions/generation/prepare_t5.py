"""The augmenter of a trained T5: its options are validated, and paragraphs selected that it can read."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from augment.questions.generation.config import GenerationConfig
from augment.questions.generation.decoding import Strategy
from augment.questions.generation.generate import QuestionOptions, readable
from augment.questions.generation.paragraphs import Counts, Paragraph
from augment.questions.generation.question_augmenter import BACKENDS, Questions, check_asking
from augment.questions.generator import Generator, digest_generator, load_generator
from mtkd.device import worker_device
from mtkd.output_files.worker_pools import other_model, path_for_workers

_CHUNK = 4096


@dataclasses.dataclass(frozen=True)
class PreparedT5:
    """A loaded generator with its validated options."""

    config: GenerationConfig
    generator: Generator
    asking: QuestionOptions

    @staticmethod
    def load(config: GenerationConfig) -> PreparedT5:
        """Load the generator; UserError if it or an option cannot be used."""
        generator = load_generator(
            config.model, form=config.form, max_input=config.max_input, max_output=config.max_output
        )
        strategy = Strategy(
            config.beams, config.sample, config.temperature, config.top_p, generator.reading.max_output
        )
        asking = QuestionOptions(generator.reading, strategy, config.seed, config.per_paragraph, config.spacy)
        check_asking(asking, config.backend, config.precision)
        return PreparedT5(config, generator, asking)

    def usable(self, paragraphs: list[Paragraph], counts: Counts) -> tuple[list[Paragraph], Counts]:
        """Drop paragraphs of which no sentence fits the generator, and count those that are shortened."""
        usable: list[Paragraph] = []
        shortened = 0
        for start in range(0, len(paragraphs), _CHUNK):
            chunk = paragraphs[start : start + _CHUNK]
            texts = [paragraph.text for paragraph in chunk]
            shown = readable(self.generator.tokenizer, texts, self.asking.reading)
            for paragraph, text in zip(chunk, shown, strict=True):
                usable += [paragraph] if text is not None else []
                shortened += text is not None and text != paragraph.text
        left_out = len(paragraphs) - len(usable)
        return usable, dataclasses.replace(counts, shortened=shortened, too_long=left_out, kept=len(usable))

    def augmenter(self, counts: Counts, device: Any) -> Questions:
        """The augmenter, with the model on a device."""
        config, generator = self.config, self.generator
        generator.model.to(device)
        digest, reading = digest_generator(generator), dataclasses.asdict(generator.reading)
        same = dataclasses.replace(config, model=path_for_workers(config.model), **reading)
        return Questions(
            generator,
            digest,
            self.asking,
            BACKENDS[config.backend](generator, config.batch, config.precision),
            config.backend,
            config.precision,
            str(config.words or "any"),
            counts.sentence(),
            functools.partial(_load_same, same, digest, counts),
        )


def _load_same(config: GenerationConfig, digest: str, counts: Counts) -> Questions:
    """Load the generator in another process."""
    augmenter = PreparedT5.load(config).augmenter(counts, worker_device())
    if augmenter.digest != digest:
        raise other_model(config.model)
    return augmenter
