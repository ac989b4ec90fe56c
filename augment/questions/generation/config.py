"""Prepare question generation: validate the options, select the paragraphs and load the generator."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from augment.corpus_writer import CorpusJob
from augment.questions.generation.decoding import Strategy
from augment.questions.generation.generate import Asking, readable
from augment.questions.generation.paragraphs import (
    Counts,
    Paragraph,
    Words,
    as_rows,
    open_paragraphs,
    select_paragraphs,
)
from augment.questions.generation.question_augmenter import ENGINES, Questions, check_asking
from augment.questions.generator import digest_generator, load_generator
from tasks.corpus_reader import CorpusManifest
from tasks.errors import UserError
from tasks.rows import Rows

_CHUNK = 4096


@dataclass(frozen=True)
class GenerationConfig:
    """The options of `mtkd augment questions generate`; see its help for their meaning."""

    model: str
    text: str
    words: Words | None = None
    text_column: str = "text"
    title_column: str = "title"
    split: str = "train"
    per_paragraph: int = 1
    beams: int = 1
    sample: bool = False
    top_p: float = 0.95
    temperature: float = 1.0
    form: str | None = None
    max_input: int | None = None
    max_output: int | None = None
    spacy: str | None = None
    engine: str = "native"
    precision: str = "fp32"
    batch: int = 32
    shard: int = 1000
    limit: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class PreparedGeneration:
    """The job and the rows for `augment.corpus_writer.write_corpus`, and the paragraph counts."""

    job: CorpusJob
    rows: Mapping[str, Rows]
    counts: Counts


def prepare_generation(
    config: GenerationConfig, task: str, device: Any, version: str, command: str
) -> PreparedGeneration:
    """Validate the options and load the generator; nothing is written.

    Raises:
        UserError: the text, the model or an option cannot be used, or no paragraph is left.
    """
    stream = open_paragraphs(config.text, config.text_column, config.title_column, config.split)
    generator = load_generator(
        config.model, form=config.form, max_input=config.max_input, max_output=config.max_output
    )
    strategy = Strategy(
        config.beams, config.sample, config.temperature, config.top_p, generator.reading.max_output
    )
    asking = Asking(generator.reading, strategy, config.seed, config.per_paragraph, config.spacy)
    check_asking(asking, config.engine, config.precision)
    paragraphs, counts = select_paragraphs(stream, config.words)
    paragraphs, counts = _fitting(generator.tokenizer, asking, _sampled(paragraphs, config.limit), counts)
    if not paragraphs:
        raise UserError(f"no paragraph of {config.text} can be used: {counts.sentence()}")
    generator.model.to(device)
    method = Questions(
        generator,
        digest_generator(generator),
        asking,
        ENGINES[config.engine](generator, config.batch, config.precision),
        config.engine,
        config.precision,
        str(config.words or "any"),
        counts.sentence(),
    )
    job = CorpusJob(method, {task: config.per_paragraph}, config.text, version, command, config.shard)
    return PreparedGeneration(job, {task: as_rows(task, paragraphs)}, counts)


def _sampled(paragraphs: list[Paragraph], limit: int | None) -> list[Paragraph]:
    if limit is None or limit >= len(paragraphs):
        return paragraphs
    chosen = np.sort(np.random.default_rng(0).choice(len(paragraphs), limit, replace=False))
    return [paragraphs[number] for number in chosen.tolist()]


def _fitting(
    tokenizer: Any, asking: Asking, paragraphs: list[Paragraph], counts: Counts
) -> tuple[list[Paragraph], Counts]:
    """Drop paragraphs of which no sentence fits the generator, and count those that are shortened."""
    kept: list[Paragraph] = []
    shortened = 0
    for start in range(0, len(paragraphs), _CHUNK):
        chunk = paragraphs[start : start + _CHUNK]
        shown = readable(tokenizer, [paragraph.text for paragraph in chunk], asking.reading)
        for paragraph, text in zip(chunk, shown, strict=True):
            kept += [paragraph] if text is not None else []
            shortened += text is not None and text != paragraph.text
    left_out = len(paragraphs) - len(kept)
    return kept, dataclasses.replace(counts, shortened=shortened, too_long=left_out, kept=len(kept))


@dataclass(frozen=True)
class SampleQuestion:
    """A question of a corpus, the beginning of its context, and the source of the context."""

    source: str
    context: str
    question: str


def samples(out: Path, manifest: CorpusManifest, count: int = 5) -> list[SampleQuestion]:
    """Return a few questions spread over the corpus."""
    return list(_samples(out, manifest, count))


def _samples(out: Path, manifest: CorpusManifest, count: int) -> Iterator[SampleQuestion]:
    step = max(1, len(manifest.shards) // count)
    shards = [shard for shard in manifest.shards if shard.rows][::step][:count]
    for shard in shards:
        rows = pq.read_table(out / shard.file, columns=["text", "text_pair", "source"]).to_pylist()
        each = -(-count // len(shards))
        for row in rows[:: max(1, len(rows) // each)][:each]:
            yield SampleQuestion(row["source"][:30], row["text_pair"][:60] + "...", row["text"])
