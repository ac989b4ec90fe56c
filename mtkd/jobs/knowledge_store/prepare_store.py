"""Prepare a knowledge store: validate the request, read the rows, load the teacher; nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mtkd.jobs.distillation.validate import validate_run
from mtkd.jobs.distillation.validated_run import ValidatedRun
from mtkd.jobs.knowledge_store.store_request import StoreRequest
from mtkd.jobs.request import Request
from mtkd.jobs.training_corpus import check_masks, corpora_key
from mtkd.jobs.training_data import EncodedRows, TrainingData, load_training_data, trainable_tasks
from mtkd.knowledge_store.contents import Contents, LogitsLayout
from mtkd.knowledge_store.row_index import table_bytes
from mtkd.knowledge_store.shard_files import plan_shards
from mtkd.knowledge_store.shard_writer import StoreSpec, entry_counts
from mtkd.knowledge_store.sizing import TokenCounts, bytes_per_output, choose_selection
from mtkd.models.multitask import MultiTaskModel
from mtkd.output_files.sharded_output import PlannedShard
from mtkd.outputs import OutputSpec
from mtkd.precision import warn_of_slow_bf16
from mtkd.recipes import load_settings
from mtkd.selection import Selection
from mtkd.settings import DistillSettings
from mtkd.teachers.teacher_ref import TeacherRef
from mtkd.training.processes import make_accelerator
from tasks.common.errors import UserError
from tasks.data.loading import digest_rows
from tasks.data.rows import Rows
from tasks.data.unlabelled import UnlabelledRequest
from tasks.tokens.encoding import Encoded


@dataclass(frozen=True)
class PreparedStore:
    """A store that is ready to be built: the rows are read, and the teacher is loaded.

    Attributes:
        rows: task -> rows.
        corpus: the key of the corpus, or a digest of the keys of several; None if there is none.
        chosen: the settings chosen to fit the budget, dotted name -> value.
        sizes: kind of knowledge -> predicted bytes.
        student_layers: the number of layers of the student that the recipe describes.
        warnings: about the rows, such as those that the teacher truncates.
    """

    request: StoreRequest
    settings: DistillSettings
    teacher: TeacherRef
    rows: dict[str, Rows]
    spec: StoreSpec
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
class _StoreInputs:
    """The loaded teacher, and the rows whose outputs are stored, as the token ids that it reads.

    Attributes:
        encoded: task -> rows.
        corpus: the key of the corpus, or a digest of the keys of several; None if there is none.
        warnings: about the rows, such as those that the teacher truncates.
    """

    teacher: MultiTaskModel
    data: TrainingData
    encoded: dict[str, Encoded]
    corpus: str | None
    warnings: list[str]

    @property
    def index_bytes(self) -> int:
        """The size of the row index."""
        return sum(table_bytes(part.train) for part in self.data.parts)

    def token_counts(self, contents: Contents) -> dict[str, TokenCounts]:
        """For each task, the tokens of each row, and how many of them a selection may keep at most.

        A limit on the tokens is lifted here, but still decides whether [SEP] may be kept.
        """
        selection = contents.need.selection
        unlimited = _with_token_limit(contents, 1 << 30) if selection and selection.tokens else contents
        counts = {}
        for name, rows in self.encoded.items():
            task = self.data.tasks[name]
            tokens, eligible = entry_counts(unlimited, self.teacher.reader_of(task), rows)
            counts[name] = TokenCounts(LogitsLayout.of(task), tokens, eligible)
        return counts

    def shards(self, contents: Contents, counts: Mapping[str, TokenCounts]) -> list[PlannedShard]:
        """Plan the shards of all tasks; the number of rows of a shard depends on their predicted size."""
        planned = []
        for name, rows in self.encoded.items():
            row_bytes = sum(bytes_per_output(contents, {name: counts[name]}, 0, 0).values()) / max(
                1, len(rows)
            )
            planned += plan_shards(name, len(rows), rows.groups, row_bytes)
        return planned


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
    inputs = _load_inputs(request, validated, teacher_ref)
    encoder, max_length = teacher_ref.config.spec, inputs.teacher.info.max_length
    contents = Contents.of(need, request.dtype, encoder, max_length)
    chosen: dict[str, Any] = {}
    if request.budget is not None:
        chosen = _fit_to_budget(request.budget, validated, contents, inputs)
        settings = load_settings(request.recipe, "distill", request.sets | chosen, request.tasks)
        need = validate_run(settings, request.teacher, tasks).teacher_need
        contents = Contents.of(need, request.dtype, encoder, max_length)
    counts = inputs.token_counts(contents)
    spec = StoreSpec(
        teacher=inputs.teacher,
        contents=contents,
        tasks=inputs.data.tasks,
        data=inputs.encoded,
        digests={part.task.name: digest_rows(part.train) for part in inputs.data.parts},
        shards=inputs.shards(contents, counts),
        precision=request.precision,
        batch_size=request.batch,
        identity=(teacher_ref.digest, inputs.teacher.tokeniser.digest),
    )
    return PreparedStore(
        request=request,
        settings=settings,
        teacher=teacher_ref,
        rows={part.task.name: part.train for part in inputs.data.parts},
        spec=spec,
        corpus=inputs.corpus,
        chosen=chosen,
        sizes=bytes_per_output(contents, counts, len(spec.shards), inputs.index_bytes),
        student_layers=validated.student.layers,
        warnings=inputs.warnings,
    )


def _load_inputs(request: StoreRequest, validated: ValidatedRun, teacher_ref: TeacherRef) -> _StoreInputs:
    """Read the rows, including augmented copies and unlabelled rows, and load the teacher."""
    corpora = [Path(corpus) for corpus in request.corpora]
    unlabelled = UnlabelledRequest.of_files(request.unlabelled, request.unlabelled_limit)
    unlabelled.check(validated.tasks)
    run = Request(request.data, request.tasks, Path(), request.limit, 1)
    data = load_training_data(run, validated.tasks, corpora, unlabelled)
    teacher = teacher_ref.load(validated.settings.student.max_length if validated.aligned else None)
    all_rows = EncodedRows(data).for_reader(teacher.reader)
    check_masks(corpora, "teacher", teacher)
    limit = "student.max_length" if validated.aligned else "max_length of the teacher"
    truncated = all_rows.cut_warnings(teacher.reader, limit)
    warnings = [*all_rows.data.warnings, *all_rows.data.window_warnings, *truncated]
    warn_of_slow_bf16(request.precision, make_accelerator().device, warnings.append)
    key = corpora_key(corpora)
    return _StoreInputs(teacher, all_rows.data, all_rows.train(teacher.reader), key, warnings)


def _fit_to_budget(
    budget: int, validated: ValidatedRun, contents: Contents, inputs: _StoreInputs
) -> dict[str, Any]:
    """The depth, tokens and width that fit a budget, as dotted setting -> value.

    Args:
        budget: the maximum size of the store in bytes.
        contents: what the recipe stores without a budget.

    Raises:
        UserError: the recipe stores no hidden states, or the budget is too small.
    """
    settings = validated.settings
    names = [name for name, term in settings.terms.items() if term.loss == "hidden_knowledge"]
    selection = contents.need.selection
    if not names or selection is None:
        raise UserError(
            f"`budget` chooses how much of the hidden states is kept, but {settings.name} keeps none",
            expected="recipes with a hidden_knowledge term, such as hsk-tinybert-4",
            hint="leave `budget` out",
        )
    # The budget limits the tokens, and a selection excludes [SEP] only if it has a limit (any number).
    counts = inputs.token_counts(_with_token_limit(contents, 1))
    index_bytes = inputs.index_bytes

    def size_of(depth: int, tokens: int, width: float) -> int:
        chosen_selection: Selection = replace(selection, tokens=tokens, width=width)
        need = replace(contents.need, selected=frozenset(range(depth)), selection=chosen_selection)
        return sum(bytes_per_output(replace(contents, need=need), counts, len(counts), index_bytes).values())

    depth, tokens, width = choose_selection(
        budget, validated.student.layers + 1, contents.max_length, size_of
    )
    values = {"depth": depth, "tokens": tokens, "width": width}
    return {f"terms.{name}.{key}": value for name in names for key, value in values.items()}


def _with_token_limit(contents: Contents, tokens: int) -> Contents:
    """The same contents with another number of tokens per row in the selection, if there is one."""
    need = contents.need
    selection = replace(need.selection, tokens=tokens) if need.selection else None
    return replace(contents, need=replace(need, selection=selection))
