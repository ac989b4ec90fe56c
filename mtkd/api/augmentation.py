"""`mtkd.augment`: new training text, written to disk as a corpus.

mtkd.augment.mask(data="pocket", tasks="rte", out="corpora/masked", copies={"rte": 20})
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtkd import __version__
from tasks.sources import load_rows, open_data
from tasks.task_names import TaskSpec, resolve

if TYPE_CHECKING:
    from augment.augmenter import Augmenter
    from augment.corpus_writer import WrittenCorpus
    from augment.questions.filtering.filter_corpus import Filtered
    from augment.questions.generation.config import PreparedGeneration
    from tasks.answers import Answerer
    from tasks.task import Task

Copies = int | str | Mapping[str, int] | None


def mask(
    data: Any,
    tasks: TaskSpec,
    out: str | Path,
    *,
    p: float = 0.1,
    copies: Copies = None,
    seed: int = 0,
    mask_token: str = "[MASK]",
    workers: int = 1,
    limit: int | None = None,
    overwrite: bool = False,
    command: str = "mtkd.augment.mask(...)",
) -> WrittenCorpus:
    """Write copies of every training row in which words are replaced by the mask token (MKD).

    Args:
        data, tasks: the rows; see `mtkd.refine`.
        out: the corpus directory; an unfinished corpus of the same settings is resumed.
        p: probability that a word is masked.
        copies: copies per row, task -> copies, or "rte=40,sst2=10"; by default 40 for STS-B, MRPC and RTE,
            else 10.
        mask_token: of the teacher's tokeniser.
        workers: processes; the output does not depend on their number.
        limit: at most so many rows per task; overwrite: drop another corpus in `out`.
        command: how the corpus's manifest says it was made.

    Returns:
        The manifest, and how many shards were written now and before.
    """
    from augment.masking import Masking

    method = Masking(p=p, seed=seed, mask_token=mask_token)
    return _write(method, _copies(tasks, copies), data, tasks, out, workers, limit, overwrite, command)


def replace(
    data: Any,
    tasks: TaskSpec,
    out: str | Path,
    *,
    p_mask: float = 0.1,
    p_pos: float = 0.1,
    p_ngram: float = 0.25,
    copies: Copies = None,
    tagger: str = "auto",
    seed: int = 0,
    mask_token: str = "[MASK]",
    workers: int = 1,
    limit: int | None = None,
    overwrite: bool = False,
    command: str = "mtkd.augment.replace(...)",
) -> WrittenCorpus:
    """Write copies with words masked or replaced, and n-grams cut out (Tang et al. 2019).

    Args:
        p_mask: probability that a word is masked; p_pos: that it becomes another word of its part of speech;
            p_ngram: that a text is cut to 1 to 5 consecutive words.
        copies: copies per row, or task -> copies; 20 by default.
        tagger: where parts of speech come from: "auto", "spacy:MODEL" or "nltk"; nothing is downloaded.
        data, tasks, out, seed, mask_token, workers, limit, overwrite, command: see `mask`.
    """
    from augment.replacement import COPIES, Replacement

    method = Replacement({}, tagger, p_mask, p_pos, p_ngram, seed, mask_token)
    numbers = _copies(tasks, copies, default=COPIES)
    return _write(method, numbers, data, tasks, out, workers, limit, overwrite, command)


def run(
    name: str,
    data: Any,
    tasks: TaskSpec,
    out: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    copies: Copies = None,
    workers: int = 1,
    limit: int | None = None,
    overwrite: bool = False,
    command: str = "mtkd.augment.run(...)",
) -> WrittenCorpus:
    """Write copies of every training row with the augmenter of a name: "mask", "replace", or one of a plugin.

    Args:
        settings: keyword arguments of the augmenter.
        data, tasks, out, copies, workers, limit, overwrite, command: see `mask`.

    Raises:
        UserError: an unknown augmenter or setting, or a value that it refuses.
    """
    from augment.augmenter_registry import build_augmenter

    method = build_augmenter(name, settings or {})
    return _write(method, _copies(tasks, copies), data, tasks, out, workers, limit, overwrite, command)


def train_questions(
    model: str,
    data: Any,
    out: str | Path,
    *,
    task: TaskSpec = "squad",
    format: str = "context",
    epochs: int = 3,
    steps: int | None = None,
    lr: float | None = None,
    batch_size: int = 64,
    max_input: int = 512,
    max_output: int = 48,
    seed: int = 0,
    precision: str = "fp32",
    vocab_size: int = 8000,
    d_model: int = 256,
    layers: int = 4,
    heads: int = 4,
    d_ff: int = 1024,
    limit: int | None = None,
    eval_limit: int | None = None,
    device: str | None = None,
    overwrite: bool = False,
    command: str = "mtkd.augment.train_questions(...)",
) -> dict[str, Any]:
    """Fine-tune a T5 to write the questions of a span task; an unfinished run is resumed.

    Args:
        model: the T5 to start from, by hub name or directory; "fresh" makes a new one of `vocab_size`,
            `d_model`, `layers`, `heads` and `d_ff`.
        data, out: see `mtkd.refine`.
        task: a span task.
        format: what the generator reads: "context", "answer" or "sentence".
        epochs, steps, lr, batch_size, seed, precision: of the training.
        max_input, max_output: tokens of a prompt and of a question.
        limit, eval_limit: at most so many training and held-out rows (1,000 held-out rows by default).

    Returns:
        The report: losses, scores on held-out rows, and samples.

    Raises:
        UserError: the data, the model or the directory cannot be used; nothing is written then.
    """
    from augment.questions.generator import Reading
    from augment.questions.training.from_scratch import NewModelShape
    from augment.questions.training.prompts import span_task
    from augment.questions.training.train_generator import TrainingPlace, TrainJob, train_generator
    from mtkd.device import find_device, keep_memory

    shape = NewModelShape(vocab_size, d_model, layers, heads, d_ff)
    job = TrainJob(
        model,
        Reading(format, max_input, max_output),
        shape,
        epochs=epochs,
        steps=steps,
        lr=lr,
        batch_size=batch_size,
        seed=seed,
        precision=precision,
        limit=limit,
        eval_limit=eval_limit or 1000,
    )
    place = TrainingPlace(Path(out), find_device(device), __version__, command, overwrite)
    with keep_memory():
        return train_generator(job, open_data(data), span_task(resolve(task)), place)


def generate_questions(
    model: str | Path,
    text: str | Path,
    out: str | Path,
    *,
    task: TaskSpec = "squad",
    words: str | None = None,
    overwrite: bool = False,
    device: str | None = None,
    command: str = "mtkd.augment.generate_questions(...)",
    **options: Any,
) -> tuple[WrittenCorpus, PreparedGeneration]:
    """Write questions about paragraphs, for a teacher to answer; an unfinished corpus is resumed.

    Args:
        model: a trained generator.
        text: paragraphs: a file or directory of text, parquet or JSONL, or "hub:NAME".
        task: the span task that the questions are for.
        words: "LEAST:MOST" words of a paragraph; longer ones are cut.
        options: the other options of `mtkd augment questions generate`, under the same names with underscores
            (`per_paragraph`, `beams`, `sample`, `top_p`, ...): fields of `GenerationConfig`.

    Returns:
        The corpus that was written, and what it was made from.

    Raises:
        UserError: the generator, the paragraphs or the options cannot be used.
    """
    from augment.corpus_writer import total_copies, write_corpus
    from augment.questions.generation.config import GenerationConfig, prepare_generation
    from augment.questions.generation.paragraphs import Words
    from augment.questions.training.prompts import span_task
    from mtkd.device import find_device, keep_memory
    from mtkd.storage.distributed import launched
    from tasks.progress import progress

    name = span_task(resolve(task)).name
    options["form"] = options.pop("format", None)
    config = GenerationConfig(str(model), str(text), words=Words.parse(words) if words else None, **options)
    ranks = launched()
    with keep_memory():
        ready = prepare_generation(config, name, find_device(device), __version__, command)
        total = total_copies(ready.job, ready.rows)
        with progress("questions", total, unit="questions", show=ranks.first) as advance:
            written = write_corpus(
                ready.job, ready.rows, Path(out), overwrite=overwrite, advance=advance, ranks=ranks
            )
    return written, ready


def filter_questions(
    corpus: str | Path,
    teacher: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    command: str = "mtkd.augment.filter_questions(...)",
    **settings: Any,
) -> Filtered:
    """Keep the generated questions that a teacher can answer, and write some that nobody can.

    Args:
        corpus: of generated questions.
        teacher: a model that answers questions.
        settings: the options of `mtkd augment questions filter`, under the same names with underscores
            (`unanswerable`, `min_overlap`, `min_confidence`, `max_copied`, `round_trip`, ...): fields of
            `FilterSettings`.

    Returns:
        What was kept, with counts by reason.

    Raises:
        UserError: the corpus or the teacher cannot be used, or nothing is left.
    """
    from augment.questions.filtering.filter_corpus import FilterJob, filter_corpus, open_questions
    from augment.questions.filtering.filter_shard import FilterSettings
    from mtkd.storage.distributed import launched
    from tasks.progress import progress

    job = FilterJob(Path(corpus), FilterSettings(**settings), __version__, command)
    rows = open_questions(Path(corpus)).rows
    ranks = launched()  # first: it decides which device is this process's
    answerer = load_answerer(Path(teacher))
    with progress("filtering", rows, unit="questions", show=ranks.first) as advance:
        return filter_corpus(job, answerer, Path(out), overwrite=overwrite, ranks=ranks, advance=advance)


def load_answerer(directory: Path) -> Answerer:
    """The teacher that answers questions, from the directory of a run or of a model."""
    from mtkd.evaluation.question_answering import SpanAnswerer

    return SpanAnswerer.load(directory)


def _trained(tasks: TaskSpec) -> list[Task]:
    return [task for task in resolve(tasks) if task.train is not None]


def _copies(tasks: TaskSpec, copies: Copies, default: int | None = None) -> dict[str, int]:
    """Task -> copies per row: the default (None = each task's own), changed by `copies`."""
    from augment.corpus_writer import copies_of

    words = [] if default is None else [str(default)]
    if isinstance(copies, int | str):
        words.append(str(copies))
    elif copies is not None:
        words += [f"{task}={number}" for task, number in copies.items()]
    return copies_of(_trained(tasks), ",".join(words))


def _write(
    method: Augmenter,
    copies: Mapping[str, int],
    data: Any,
    tasks: TaskSpec,
    out: str | Path,
    workers: int,
    limit: int | None,
    overwrite: bool,
    command: str,
) -> WrittenCorpus:
    from augment.corpus_writer import CorpusJob, total_copies, write_corpus
    from mtkd.storage.distributed import launched
    from tasks.progress import progress

    source = open_data(data)
    rows = {
        task.name: load_rows(source, task, task.train, limit, 0) for task in _trained(tasks) if task.train
    }
    job = CorpusJob(method.prepare(rows), copies, source.name, __version__, command)
    ranks = launched()
    with progress("copying", total_copies(job, rows), unit="copies", show=ranks.first) as advance:
        return write_corpus(
            job, rows, Path(out), workers=workers, overwrite=overwrite, advance=advance, ranks=ranks
        )
