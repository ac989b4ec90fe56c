"""Plan a knowledge store: validate the request, read the rows, predict size and time; nothing is written."""

from __future__ import annotations

import glob
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from accelerate import Accelerator

from mtkd.jobs.distillation.validated_run import ValidatedRun, validate_run
from mtkd.jobs.request import Request
from mtkd.jobs.training_corpus import check_mask
from mtkd.jobs.training_data import EncodedRows, TrainingData, load_training_data, trainable_tasks
from mtkd.jobs.training_job import Warn, ignore_warning
from mtkd.knowledge_store.contents import Contents, Dtype, LogitsLayout, pack_outputs
from mtkd.knowledge_store.row_index import table_bytes
from mtkd.knowledge_store.shard_files import plan_shards
from mtkd.knowledge_store.shard_writer import StoreJob, entry_counts, length_sorted_batches
from mtkd.knowledge_store.sizing import TokenCounts, amount, choose_selection, sizes
from mtkd.outputs import OutputSpec
from mtkd.precision import warn_of_slow_bf16
from mtkd.recipes import load_settings
from mtkd.selection import Selection
from mtkd.settings import DistillSettings
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.teachers.teacher_sources import OnlineTeacher
from mtkd.training.processes import make_accelerator
from tasks.common.errors import UserError
from tasks.common.reading import real_path
from tasks.common.records import Count, Record, Size
from tasks.data.corpus_reader import read_corpus
from tasks.data.loading import digest_rows
from tasks.data.rows import Rows
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import Task
from tasks.tokens.batching import Collator
from tasks.tokens.encoding import Encoded

_TIMED_BATCHES = 6


@dataclass(frozen=True)
class StoreRequest(Record):
    """The arguments for building a store.

    Attributes:
        recipe, sets: the recipe that will use the store, and overrides of its settings.
        data, tasks, limit, corpus: the training rows whose outputs are stored.
        unlabelled, unlabelled_limit: the unlabelled rows; see `tasks.data.unlabelled.UnlabelledRequest`.
        teacher: the teacher whose outputs are stored.
        dtype: the number format of the vectors on disk.
        precision: the precision in which the teacher runs.
        batch: rows per batch of the teacher.
        budget: the maximum size in bytes, to which the recipe's depth, tokens and width are fitted; None = as
            in the recipe.
    """

    recipe: str
    data: str | None
    tasks: str
    teacher: str
    sets: dict[str, Any] = field(default_factory=dict)
    corpus: str | None = None
    limit: Size | None = None
    unlabelled: dict[str, str | list[str]] = field(default_factory=dict)
    unlabelled_limit: Count | None = None
    dtype: Dtype = "fp16"
    precision: Literal["fp32", "bf16"] = "fp32"
    batch: Size = 32
    budget: Count | None = None

    def options(self) -> dict[str, Any]:
        """The request as JSON values with absolute paths, so that a repair can run in any directory."""

        def absolute(name: str | None) -> str | None:
            return str(Path(name).resolve()) if name and Path(name).exists() else name

        def absolute_file(name: str) -> str:
            # Only with a suffix, since a directory may have the name of a task or recipe.
            return str(absolute(name)) if name.endswith(".toml") else name

        paths: dict[str, Any] = {key: absolute(getattr(self, key)) for key in ("data", "teacher", "corpus")}
        paths["recipe"] = absolute_file(self.recipe)
        paths["tasks"] = ",".join(absolute_file(name.strip()) for name in self.tasks.split(","))
        files = {
            task: [absolute_pattern(f) for f in file] if isinstance(file, list) else absolute_pattern(file)
            for task, file in self.unlabelled.items()
        }
        return asdict(self) | paths | {"unlabelled": files}


@dataclass(frozen=True)
class PreparedStore:
    """A store that is ready to be built: the rows are read, and the teacher is loaded.

    Attributes:
        rows: task -> rows.
        corpus: the key of the augmented corpus; None if there is none.
        chosen: the settings chosen to fit the budget, dotted name -> value.
        sizes: kind of knowledge -> predicted bytes.
        student_layers: the number of layers of the student that the recipe describes.
        warnings: about the rows, such as those that the teacher truncates.
    """

    request: StoreRequest
    settings: DistillSettings
    teacher: TeacherRef
    rows: dict[str, Rows]
    job: StoreJob
    corpus: str | None
    chosen: dict[str, Any]
    sizes: dict[str, int]
    student_layers: int
    warnings: list[str]

    @property
    def bytes(self) -> int:
        """The predicted size of the whole store."""
        return sum(self.sizes.values())


@dataclass(frozen=True)
class StorePlan:
    """The predicted content and cost of a store.

    Attributes:
        rows: the number of rows of all tasks.
        tokens: the number of their tokens, without padding.
        free: free bytes on the disk.
        seconds: the estimated running time of the teacher.
        ahsk: layers x tokens x fraction of the width that are kept of a full-length row (Liu et al. 2021),
            and the same without a selection; None if the recipe selects nothing.
    """

    prepared: PreparedStore
    rows: int
    tokens: int
    free: int
    seconds: float
    ahsk: tuple[float, int] | None


def prepare_store(request: StoreRequest) -> PreparedStore:
    """Validate a request, read its rows and load the teacher.

    Raises:
        UserError: invalid recipe, data, teacher or corpus; or the budget is too small.
    """
    tasks = trainable_tasks(request.tasks, request.data)
    settings = load_settings(request.recipe, "distill", request.sets, request.tasks)
    validated = validate_run(settings, request.teacher, tasks)
    need, teacher_ref = validated.teacher_need, validated.teacher
    if need == OutputSpec() or teacher_ref is None:
        raise UserError(
            f"{settings.name} does not use a teacher, so there is nothing to store",
            hint="choose a recipe that distils, or remove supervision=labels",
        )
    corpus = Path(request.corpus) if request.corpus else None
    data = _training_rows(request, tasks, corpus)
    teacher = teacher_ref.load(settings.student.max_length if validated.aligned else None)
    all_rows = EncodedRows(data).for_reader(teacher.reader)
    data, encoded = all_rows.data, all_rows.train(teacher.reader)
    if corpus:
        check_mask(corpus, {"teacher": teacher})
    limit = "student.max_length" if validated.aligned else "max_length of the teacher"
    warnings = [*data.warnings, *data.window_warnings, *all_rows.cut_warnings(teacher.reader, limit)]
    warn_of_slow_bf16(request.precision, make_accelerator().device, warnings.append)
    spec, max_length = teacher_ref.config.spec, teacher.info.max_length
    contents = Contents.of(need, request.dtype, spec, max_length)
    index_bytes = sum(table_bytes(part.train) for part in data.parts)
    chosen: dict[str, Any] = {}
    if request.budget is not None:
        # The budget limits the tokens, and a selection excludes [SEP] only if it has a limit (any number).
        limited = with_token_limit(contents, 1)
        counts = {name: _count_entries(limited, teacher, data, rows) for name, rows in encoded.items()}
        chosen = _fit_to_budget(request.budget, settings, validated, contents, counts, index_bytes)
        settings = load_settings(request.recipe, "distill", request.sets | chosen, request.tasks)
        need = validate_run(settings, request.teacher, tasks).teacher_need
        contents = Contents.of(need, request.dtype, spec, max_length)
    counted = {name: _count_entries(contents, teacher, data, rows) for name, rows in encoded.items()}
    shards = []
    for name, rows in encoded.items():
        row_bytes = sum(sizes(contents, {name: counted[name]}, 0, 0).values()) / max(1, len(rows))
        shards += plan_shards(name, len(rows), rows.groups, row_bytes)
    digests = {part.task.name: digest_rows(part.train) for part in data.parts}
    identity = (teacher_ref.digest, teacher.tokeniser.digest)
    job = StoreJob(
        teacher, contents, data.tasks, encoded, digests, shards, request.precision, request.batch, identity
    )
    key = read_corpus(corpus).key if corpus else None
    rows_of = {part.task.name: part.train for part in data.parts}
    predicted = sizes(contents, counted, len(shards), index_bytes)
    return PreparedStore(
        request,
        settings,
        teacher_ref,
        rows_of,
        job,
        key,
        chosen,
        predicted,
        validated.student.layers,
        warnings,
    )


def _training_rows(request: StoreRequest, tasks: list[Task], corpus: Path | None) -> TrainingData:
    """The rows of a store, including augmented copies and unlabelled rows."""
    files = {k: [Path(f) for f in v] if isinstance(v, list) else v for k, v in request.unlabelled.items()}
    unlabelled = UnlabelledRequest(files, request.unlabelled_limit)
    unlabelled.check(tasks)
    run = Request(request.data, request.tasks, Path(), request.limit, 1)
    return load_training_data(run, tasks, corpus, unlabelled)


def absolute_pattern(pattern: str) -> str:
    """A file pattern as an absolute path; the name of a split is returned unchanged."""
    return str(Path(pattern).resolve()) if glob.glob(pattern) else pattern


def with_token_limit(contents: Contents, tokens: int) -> Contents:
    """The same contents with another number of tokens per row in the selection, if there is one."""
    need = contents.need
    selection = replace(need.selection, tokens=tokens) if need.selection else None
    return replace(contents, need=replace(need, selection=selection))


def _count_entries(contents: Contents, teacher: Any, data: TrainingData, rows: Encoded) -> TokenCounts:
    """The number of tokens of each row of a task, and how many of them a selection may keep at most.

    A limit on the tokens is lifted here, but still decides whether [SEP] may be kept.
    """
    selection = contents.need.selection
    unlimited = with_token_limit(contents, 1 << 30) if selection and selection.tokens else contents
    tokens, eligible = entry_counts(unlimited, teacher.reader_of(data.tasks[rows.task]), rows)
    return TokenCounts(LogitsLayout.of(data.tasks[rows.task]), tokens, eligible)


def _fit_to_budget(
    budget: int,
    settings: DistillSettings,
    validated: ValidatedRun,
    contents: Contents,
    counted: Mapping[str, TokenCounts],
    index_bytes: int,
) -> dict[str, Any]:
    """The depth, tokens and width that fit a budget, as dotted setting -> value.

    Args:
        budget: the maximum size of the store in bytes.
        index_bytes: the size of the row index.

    Raises:
        UserError: the recipe stores no hidden states, or the budget is too small.
    """
    names = [name for name, term in settings.terms.items() if term.loss == "hidden_knowledge"]
    selection = contents.need.selection
    if not names or selection is None:
        raise UserError(
            f"`budget` chooses how much of the hidden states is kept, but {settings.name} keeps none",
            expected="recipes with a hidden_knowledge term, such as hsk-tinybert-4",
            hint="leave `budget` out",
        )

    def size_of(depth: int, tokens: int, width: float) -> int:
        chosen_selection: Selection = replace(selection, tokens=tokens, width=width)
        need = replace(contents.need, selected=frozenset(range(depth)), selection=chosen_selection)
        return sum(sizes(replace(contents, need=need), counted, len(counted), index_bytes).values())

    depth, tokens, width = choose_selection(
        budget, validated.student.layers + 1, contents.max_length, size_of
    )
    values = {"depth": depth, "tokens": tokens, "width": width}
    return {f"terms.{name}.{key}": value for name in names for key, value in values.items()}


def plan_store(request: StoreRequest, out: Path, warn: Warn = ignore_warning) -> StorePlan:
    """Predict the content and cost of a store; nothing is written.

    Args:
        warn: called with each warning about the rows.

    Raises:
        UserError: as for `prepare_store`.
    """
    prepared = prepare_store(request)
    for text in prepared.warnings:
        warn(text)
    job = prepared.job
    accelerator = make_accelerator()
    job.teacher.to(accelerator.device)
    lengths = {
        name: job.teacher.reader_of(job.tasks[name]).lengths(rows.texts) for name, rows in job.data.items()
    }
    selection = job.contents.need.selection
    ahsk = None
    if selection is not None:
        max_length = job.contents.max_length
        depth, layers = len(job.contents.need.selected), prepared.student_layers + 1
        ahsk = amount(depth, selection.tokens or max_length, selection.width), layers * max_length
    existing = next(p for p in (real_path(out), *real_path(out).parents) if p.exists())
    return StorePlan(
        prepared,
        sum(map(len, lengths.values())),
        int(sum(map(np.sum, lengths.values()))),
        shutil.disk_usage(existing).free,
        _estimate(job, accelerator),
        ahsk,
    )


def _estimate(job: StoreJob, accelerator: Accelerator) -> float:
    """Estimate the running time of the teacher in seconds by timing a few batches of different lengths."""
    source = OnlineTeacher(job.teacher, job.contents.need, job.precision)
    total = 0.0
    for name, rows in job.data.items():
        collate = Collator(job.teacher.reader_of(job.tasks[name]))
        batches = length_sorted_batches(rows, collate.reader, job.batch_size)
        count = min(len(batches), max(1, _TIMED_BATCHES // len(job.data)))
        timed = [collate(rows, batches[int((n + 0.5) * len(batches) / count)]) for n in range(count)]
        warm_up = timed[0].to(accelerator.device)
        pack_outputs(source.outputs(job.tasks[name], warm_up), job.contents)
        started = time.perf_counter()
        for batch in timed:
            pack_outputs(source.outputs(job.tasks[name], batch.to(accelerator.device)), job.contents)
        total += (time.perf_counter() - started) / len(timed) * len(batches)
    return total
