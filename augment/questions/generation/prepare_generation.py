"""Prepare question generation: validate the options, select the paragraphs and load the generator."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from augment.augmenter import Augmenter
from augment.corpus_directory import ENDPOINT_ANSWERS
from augment.corpus_writer import CorpusSpec, unfinished_rows
from augment.questions.endpoint.estimate import CostEstimate, Prices
from augment.questions.generation.config import GenerationConfig
from augment.questions.generation.paragraph_selection import EnglishOnly, ParagraphSelection
from augment.questions.generation.paragraphs import HUB, Counts, Paragraph, open_paragraphs, paragraphs_of
from augment.questions.generation.paragraphs_in_files import (
    CHUNK,
    ParagraphsInFiles,
    add_digest,
    plan_files,
    select_in_files,
)
from augment.questions.rules.generate import generate_rule_questions
from augment.questions.rules.rule_augmenter import RULES, RuleQuestions, load_entities
from augment.source_rows import SourceRows
from mtkd.output_files.worker_pools import THIS_PROCESS, Workers
from tasks.common.errors import UserError, counted
from tasks.common.progress import progress
from tasks.data.corpus_reader import MANIFEST, CorpusManifest
from tasks.data.plain_text import TextFiles
from tasks.data.rows import Rows

if TYPE_CHECKING:
    from augment.questions.endpoint.endpoint_augmenter import EndpointQuestions

_MAX_OUTPUT = 1024  # tokens of a question
_SAMPLES = 5  # questions that are shown of a corpus
_OF_T5 = "beams form max_input backend precision batch"
_OF_MODELS = "sample top_p temperature max_output seed"
_OF_ENDPOINTS = (
    "endpoint_model api_key_env prompt_template extra_body concurrency requests_per_minute timeout retries "
    "price_in price_out"
)


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class PreparedGeneration:
    """The specification and the rows for `augment.corpus_writer.write_corpus`.

    Attributes:
        counts: the counts of the paragraphs.
        estimate: the cost of the requests to an endpoint; None = none will be sent.
        prices: the prices of an endpoint's tokens.
        try_first: sends an endpoint its first request; UserError if it cannot be used.
        close: to be called at the end; ends the requests.
    """

    spec: CorpusSpec
    rows: Mapping[str, SourceRows]
    counts: Counts
    estimate: CostEstimate | None = None
    prices: Prices = Prices()  # noqa: RUF009 (it is frozen)
    try_first: Callable[[], None] = _nothing
    close: Callable[[], None] = _nothing


def prepare_generation(
    config: GenerationConfig,
    task: str,
    device: Any,
    version: str,
    command: str,
    *,
    out: Path = Path(),
    overwrite: bool = False,
    workers: Workers = THIS_PROCESS,
) -> PreparedGeneration:
    """Validate the options and load the generator; nothing is written.

    Args:
        device: the device of the T5; rules and endpoints do not use it.
        out, overwrite: where the corpus will be written, and whether another one is removed from there;
            answers of an endpoint are kept there until it is finished.
        workers: what may select the paragraphs; the result does not depend on it.

    Raises:
        UserError: the text, the model or an option cannot be used, or no paragraph is left.
    """
    _check_model_name(config.model)
    stream = open_paragraphs(config.text, config.text_column, config.title_column, config.split)
    augmenter: Augmenter
    endpoint: EndpointQuestions | None = None
    close = _nothing
    if config.model == RULES:
        augmenter, rows, counts = _prepare_rules(config, task, stream, workers)
    elif config.asks_endpoint:
        from augment.questions.endpoint.answer_log import AnswerLog
        from augment.questions.endpoint.prepare_endpoint import endpoint_questions, read_options

        _refuse(config, _OF_T5, "an endpoint")
        _check_sampling(config)
        prompt, client = read_options(config)
        close = client.close
        rows, counts = _select(config, task, stream, ParagraphSelection(config.words), THIS_PROCESS)
        paragraphs = list(_paragraphs(rows))
        log = AnswerLog(out / ENDPOINT_ANSWERS, ignore=overwrite)
        augmenter = endpoint = endpoint_questions(config, prompt, client, paragraphs, counts, log)
    else:
        augmenter, rows, counts = _prepare_t5(config, task, stream, workers, device)
    if not len(rows):
        hint = "for other languages, pass a multilingual T5 as `model='NAME'`" if counts.not_english else None
        raise UserError(f"no paragraph of {config.text} can be used: {counts.sentence()}", hint=hint)
    spec = CorpusSpec(
        augmenter, {task: config.per_paragraph}, config.text, version, command, config.shard_rows
    )
    rows_of = {task: rows}
    estimate, first = None, _nothing
    if endpoint and (overwrite or not (out / MANIFEST).is_file()):
        numbers = range(len(paragraphs)) if overwrite else unfinished_rows(spec, rows_of, out)[task]
        to_ask = [paragraphs[number] for number in numbers]
        estimate = endpoint.estimate(to_ask, config.prices)
        first = functools.partial(endpoint.try_first, to_ask)
    return PreparedGeneration(spec, rows_of, counts, estimate, config.prices, first, close)


def _check_model_name(model: str) -> None:
    """Refuse a model whose name is almost "rules"; raises UserError."""
    near = difflib.get_close_matches(model, [RULES], cutoff=0.7)
    if near and model != RULES and not Path(model).exists():
        raise UserError(
            f"unknown model {model!r} (did you mean {RULES!r}?)",
            expected="rules, the directory or hub name of a T5, or the URL of an endpoint",
        )


def _prepare_rules(
    config: GenerationConfig, task: str, stream: Iterator[Paragraph], workers: Workers
) -> tuple[Augmenter, SourceRows, Counts]:
    """The augmenter with grammar rules, the selected paragraphs, and their counts."""
    _refuse(config, f"{_OF_T5} {_OF_MODELS} {_OF_ENDPOINTS}", "`model='rules'`")
    entities = load_entities(config.spacy) if config.spacy else None
    rows, counts = _select(config, task, stream, ParagraphSelection(config.words, EnglishOnly()), workers)
    augmenter = RuleQuestions(config.spacy, str(config.words or "any"), counts.sentence())
    if len(rows) and not any(generate_rule_questions(p.text, 1, entities) for p in _paragraphs(rows)):
        raise UserError(
            f"the rules cannot generate any question from {config.text} ({counted(len(rows), 'paragraph')})",
            expected="text in whole English sentences, with names, dates, numbers or places",
        )
    return augmenter, rows, counts


def _prepare_t5(
    config: GenerationConfig, task: str, stream: Iterator[Paragraph], workers: Workers, device: Any
) -> tuple[Augmenter, SourceRows, Counts]:
    """The augmenter with a T5, the selected paragraphs, and their counts."""
    _refuse(config, _OF_ENDPOINTS, "a T5")
    _check_sampling(config)
    if (config.max_output or 0) > _MAX_OUTPUT:
        raise UserError(
            f"`max_output={config.max_output}` is more than a question can have",
            expected=f"up to {_MAX_OUTPUT:,} tokens",
        )
    from augment.questions.generation.prepare_t5 import PreparedT5

    t5 = PreparedT5.load(config)
    rows, counts = _select(config, task, stream, ParagraphSelection(config.words, t5.usable), workers)
    return t5.augmenter(counts, device), rows, counts


def _refuse(config: GenerationConfig, options: str, model: str) -> None:
    """Refuse options that this kind of model does not have."""
    for name in options.split():
        value = getattr(config, name)
        if value != getattr(GenerationConfig, name):
            raise UserError(
                f"`{'format' if name == 'form' else name}={value!r}` with {model}, which does not use it",
                hint="omit it, or choose another `model`: rules, a trained generator, or an endpoint's URL",
            )


def _check_sampling(config: GenerationConfig) -> None:
    """Raise UserError if an option of sampling is given, but not `sample`."""
    for name in ("top_p", "temperature"):
        value = getattr(config, name)
        if value != getattr(GenerationConfig, name) and not config.sample:
            problem = f"`{name}={value}` has no effect without sampling"
            raise UserError(problem, hint="also pass `sample=True`")


def _select(
    config: GenerationConfig,
    task: str,
    stream: Iterator[Paragraph],
    selection: ParagraphSelection,
    workers: Workers,
) -> tuple[SourceRows, Counts]:
    """The selected paragraphs: as rows, or left in large parquet files for other processes to read."""
    files = None
    if config.limit is None and workers.in_other_processes and not config.text.startswith(HUB):
        root = Path(config.text).expanduser()
        files = plan_files(TextFiles.open(root, config.text_column), root, config.title_column)
    if files is None:
        return selection.rows(task, stream, config.limit)
    with workers.open() as pool, progress("selecting", sum(len(f.range) for f in files)) as advance:
        paragraphs, counts = select_in_files(task, selection, files, pool, advance)
        return add_digest(paragraphs, pool), counts


def _paragraphs(rows: SourceRows) -> Iterator[Paragraph]:
    if isinstance(rows, ParagraphsInFiles):
        for part in rows.parts(CHUNK):
            yield from paragraphs_of(part.read())
    else:
        assert isinstance(rows, Rows), "paragraphs are read here, or stay in their files"
        yield from paragraphs_of(rows)


@dataclass(frozen=True)
class SampleQuestion:
    """A question of a corpus, the beginning of its context, and the source of the context."""

    source: str
    context: str
    question: str


def samples(out: Path, manifest: CorpusManifest) -> Iterator[SampleQuestion]:
    """Yield a few questions spread over the corpus."""
    step = max(1, len(manifest.shards) // _SAMPLES)
    shards = [shard for shard in manifest.shards if shard.rows][::step][:_SAMPLES]
    for shard in shards:
        rows = pq.read_table(out / shard.file, columns=["text", "text_pair", "source"]).to_pylist()
        per_shard = -(-_SAMPLES // len(shards))
        for row in rows[:: max(1, len(rows) // per_shard)][:per_shard]:
            yield SampleQuestion(row["source"][:30], row["text_pair"][:60] + "...", row["text"])


def silent_paragraphs(out: Path, manifest: CorpusManifest) -> int:
    """The number of paragraphs without any question."""
    shards = [out / shard.file for shard in manifest.shards if shard.rows]
    with_questions = sum(len(pq.read_table(path, columns=["parent"])["parent"].unique()) for path in shards)
    return manifest.tasks[0].source_rows - with_questions
