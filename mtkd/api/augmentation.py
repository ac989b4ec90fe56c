"""`mtkd.augment`: new training text, written to disk as a corpus.

mtkd.augment.mask(data="pocket", tasks="rte", out="corpora/masked", copies={"rte": 20})
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtkd import __version__
from mtkd.api.argument_types import Device, Engine, Settings, Unlabelled
from mtkd.api.question_filtering import filter_questions as filter_questions
from mtkd.api.questions import estimate_questions as estimate_questions
from mtkd.api.questions import generate_questions as generate_questions
from mtkd.api.questions import train_questions as train_questions
from mtkd.output_files.remote_paths import remote_paths
from mtkd.output_files.worker_pools import Workers
from tasks.checks.overlap import overlap_warnings
from tasks.common.arguments import NonNegativeInt, PositiveInt, Seed, checked
from tasks.common.errors import warn_caller
from tasks.data.loading import load_rows
from tasks.data.rows import Rows
from tasks.data.sources import DataSource, open_data
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task_names import TaskSpec, resolve

if TYPE_CHECKING:
    from augment.augmenter import Augmenter
    from augment.corpus_writer import WrittenCorpus
    from tasks.task import Task

CopiesSpec = int | str | Mapping[str, int] | None


@checked
@remote_paths("data", "tasks", "unlabelled", out="out")
def mask(
    data: Any,
    tasks: TaskSpec,
    out: str | Path,
    *,
    p: float = 0.1,
    copies: CopiesSpec = None,
    seed: Seed = 0,
    mask_token: str = "[MASK]",
    workers: PositiveInt | None = None,
    engine: Engine = "processes",
    address: str | None = None,
    limit: PositiveInt | None = None,
    unlabelled: Unlabelled | None = None,
    unlabelled_limit: NonNegativeInt | None = None,
    overwrite: bool = False,
    command: str = "mtkd.augment.mask(...)",
) -> WrittenCorpus:
    """Write copies of rows in which words are replaced by the mask token (MKD).

    Args:
        data, tasks: the training rows; see `mtkd.refine`.
        out: the corpus directory; an unfinished corpus of the same settings is resumed.
        p: probability that a word is masked.
        copies: copies per row, task -> copies, or "rte=40,sst2=10"; by default 40 for STS-B, MRPC and RTE,
            else 10.
        mask_token: the mask token of the teacher's tokeniser.
        workers: the number of processes; the output does not depend on it. By default 1, or with Ray the
            number of CPUs of the cluster.
        engine: where the processes run: "processes" = on this machine, "ray" = on a Ray cluster
            (docs/scale.md).
        address: the address of the Ray cluster; "auto" = the one on this machine; None = start one.
        limit: the maximum number of training rows per task.
        unlabelled, unlabelled_limit: unlabelled rows, which are copied too; see `mtkd.distill`.
        overwrite: replace another corpus in `out`.
        command: the command line that the corpus's manifest records.

    Returns:
        The manifest of the corpus, and the numbers of shards that were written now and before.
    """
    from augment.masking import Masking

    method = Masking(p=p, seed=seed, mask_token=mask_token)
    request = UnlabelledRequest({} if unlabelled is None else unlabelled, unlabelled_limit)
    processes = Workers(workers, engine, address)
    copies_of_task = _copies(tasks, data, copies)
    return _write(method, copies_of_task, data, tasks, out, processes, limit, request, overwrite, command)


@checked
@remote_paths("data", "tasks", "unlabelled", out="out")
def replace(
    data: Any,
    tasks: TaskSpec,
    out: str | Path,
    *,
    p_mask: float = 0.1,
    p_pos: float = 0.1,
    p_ngram: float = 0.25,
    copies: CopiesSpec = None,
    tagger: str = "auto",
    seed: Seed = 0,
    mask_token: str = "[MASK]",
    workers: PositiveInt | None = None,
    engine: Engine = "processes",
    address: str | None = None,
    limit: PositiveInt | None = None,
    unlabelled: Unlabelled | None = None,
    unlabelled_limit: NonNegativeInt | None = None,
    overwrite: bool = False,
    command: str = "mtkd.augment.replace(...)",
) -> WrittenCorpus:
    """Write copies with words masked or replaced, and n-grams cut out (Tang et al. 2019).

    Args:
        p_mask: probability that a word is masked.
        p_pos: probability that a word is replaced by another of its part of speech.
        p_ngram: probability that a text is cut to 1 to 5 consecutive words.
        copies: copies per row, or task -> copies; 20 by default.
        tagger: the part-of-speech tagger: "auto", "spacy:MODEL" or "nltk"; nothing is downloaded. With
            "none", any word can replace any other.
        data, tasks, out, seed, mask_token, workers, engine, address, limit, unlabelled, unlabelled_limit,
            overwrite, command: see `mask`.
    """
    from augment.replacement import COPIES, Replacement

    method = Replacement({}, tagger, p_mask, p_pos, p_ngram, seed, mask_token)
    copies_of_task = _copies(tasks, data, copies, default=COPIES)
    request = UnlabelledRequest({} if unlabelled is None else unlabelled, unlabelled_limit)
    processes = Workers(workers, engine, address)
    return _write(method, copies_of_task, data, tasks, out, processes, limit, request, overwrite, command)


@checked
@remote_paths("data", "tasks", "unlabelled", "model", "vectors", out="out")
def contextual(
    data: Any,
    tasks: TaskSpec,
    out: str | Path,
    *,
    model: str | Path,
    vectors: str | Path | None = None,
    p: float = 0.4,
    candidates: PositiveInt = 15,
    copies: CopiesSpec = None,
    seed: Seed = 0,
    workers: PositiveInt | None = None,
    engine: Engine = "processes",
    address: str | None = None,
    limit: PositiveInt | None = None,
    device: Device | None = None,
    unlabelled: Unlabelled | None = None,
    unlabelled_limit: NonNegativeInt | None = None,
    overwrite: bool = False,
    command: str = "mtkd.augment.contextual(...)",
) -> WrittenCorpus:
    """Write copies with words replaced by those that a masked language model suggests (TinyBERT).

    A word that is one token is replaced by one of the words that the model finds most probable at its
    position. Any other word is replaced by one of its nearest neighbours among word vectors.

    Args:
        model: hub name or directory of a transformers masked language model, with its head.
        vectors: a text file of word vectors in the format of GloVe or word2vec; None = the model's input
            embeddings of whole words, compared with the mean of the word's tokens.
        p: probability that a word is replaced.
        candidates: the number of words from which a replacement is drawn.
        copies: copies per row, or task -> copies; 20 by default.
        device: "cpu", "cuda", "cuda:1" or "mps"; by default the GPU if there is one.
        data, tasks, out, seed, workers, engine, address, limit, unlabelled, unlabelled_limit, overwrite,
            command: see `mask`.

    Raises:
        UserError: the model has no masked-LM head, or the model or the vectors cannot be read.
    """
    from augment.contextual import COPIES, Contextual

    method = Contextual(str(model), None if vectors is None else str(vectors), p, candidates, seed, device)
    copies_of_task = _copies(tasks, data, copies, default=COPIES)
    request = UnlabelledRequest({} if unlabelled is None else unlabelled, unlabelled_limit)
    processes = Workers(workers, engine, address)
    return _write(method, copies_of_task, data, tasks, out, processes, limit, request, overwrite, command)


@checked
@remote_paths("data", "tasks", "unlabelled", "settings", out="out")
def run(
    name: str,
    data: Any,
    tasks: TaskSpec,
    out: str | Path,
    *,
    settings: Settings | None = None,
    copies: CopiesSpec = None,
    workers: PositiveInt | None = None,
    engine: Engine = "processes",
    address: str | None = None,
    limit: PositiveInt | None = None,
    unlabelled: Unlabelled | None = None,
    unlabelled_limit: NonNegativeInt | None = None,
    overwrite: bool = False,
    command: str = "mtkd.augment.run(...)",
) -> WrittenCorpus:
    """Write copies of rows with an augmenter that is chosen by name.

    Args:
        name: a built-in augmenter, such as "mask", or one that a plugin provides.
        settings: keyword arguments of the augmenter.
        data, tasks, out, copies, workers, engine, address, limit, unlabelled, unlabelled_limit, overwrite,
            command: see `mask`.

    Raises:
        UserError: the augmenter or a setting is unknown, or a value is invalid.
    """
    from augment.augmenter_registry import build_augmenter

    method = build_augmenter(name, settings or {})
    request = UnlabelledRequest({} if unlabelled is None else unlabelled, unlabelled_limit)
    processes = Workers(workers, engine, address)
    copies_of_task = _copies(tasks, data, copies)
    return _write(method, copies_of_task, data, tasks, out, processes, limit, request, overwrite, command)


def _trainable_tasks(tasks: TaskSpec, data: Any) -> list[Task]:
    """The tasks that have a training split; the others have no rows to copy."""
    return [task for task in resolve(tasks, data=data) if task.train is not None]


def _copies(tasks: TaskSpec, data: Any, copies: CopiesSpec, default: int | None = None) -> dict[str, int]:
    """Task -> copies per row: the default (None = that of each task), unless `copies` sets another number."""
    from augment.corpus_writer import copies_of

    assignments = [] if default is None else [str(default)]
    if isinstance(copies, int | str):
        assignments.append(str(copies))
    elif copies is not None:
        assignments += [f"{task}={number}" for task, number in copies.items()]
    return copies_of(_trainable_tasks(tasks, data), ",".join(assignments))


def _write(
    method: Augmenter,
    copies: Mapping[str, int],
    data: Any,
    tasks: TaskSpec,
    out: str | Path,
    workers: Workers,
    limit: int | None,
    unlabelled: UnlabelledRequest,
    overwrite: bool,
    command: str,
) -> WrittenCorpus:
    """Load or scan the rows, and write their copies."""
    from augment.copies_warnings import copies_warnings
    from augment.corpus_writer import CorpusSpec, total_copies, write_corpus
    from augment.source_rows import SourceRows, plan_source_rows, validate_source_rows
    from mtkd.output_files.distributed import join_process_group
    from tasks.common.progress import progress

    method.check_requirements()
    source = open_data(data)
    group = join_process_group()
    trainable = _trainable_tasks(tasks, data)
    unlabelled.check(trainable)
    planned = plan_source_rows(method, source, trainable, limit, unlabelled, workers)
    loaded = dict[str, Rows]()
    rows = dict[str, SourceRows]()
    added = dict[str, int]()
    with workers.open() if planned else contextlib.nullcontext() as pool:
        for task in trainable:
            if pool and task.name in planned:
                with progress("validating", len(planned[task.name])) as advance:
                    rows[task.name] = validate_source_rows(planned[task.name], pool, source, advance)
                continue
            loaded[task.name], added[task.name] = _load(source, task, limit, unlabelled, warn=group.is_main)
            rows[task.name] = loaded[task.name]
    to_prepare: Any = rows if getattr(method, "reads_files", False) else loaded
    ready = method.prepare(to_prepare, workers)
    spec = CorpusSpec(ready, copies, source.name, __version__, command, ready.shard_copies, added)
    with progress("copying", total_copies(spec, rows), unit="copies") as advance:
        written = write_corpus(
            spec, rows, Path(out), workers=workers, overwrite=overwrite, advance=advance, group=group
        )
    for text in copies_warnings(written.manifest) if group.is_main else ():
        warn_caller(text)
    return written


def _load(
    source: DataSource, task: Task, limit: int | None, unlabelled: UnlabelledRequest, *, warn: bool
) -> tuple[Rows, int]:
    """The training rows of a task, followed by its unlabelled rows, and the number of these."""
    assert task.train is not None, "only trainable tasks have copies"
    train = load_rows(source, task, task.train, limit)
    rows, added = unlabelled.append(source, task, train)
    if added and warn:
        added_rows = rows.slice(len(train), len(rows))
        for text in overlap_warnings(source, task, added_rows, unlabelled.split_of(task)):
            warn_caller(text)
    return rows, added
