"""The students that `mtkd suggest` times: models of several shapes, with random weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mtkd.jobs.distillation.validate import validate_run
from mtkd.jobs.training_data import trainable_tasks
from mtkd.models.encoders.bi_encoders import can_be_bi_encoder
from mtkd.models.encoders.encoder_registry import encoder_class
from mtkd.models.encoders.pretrained_config import TransformerConfig, exceeds_default_encoder, locate
from mtkd.models.encoders.static import StaticSettings, width_settings
from mtkd.models.multitask import MultiTaskModel
from mtkd.models.saved_model import ModelInfo
from mtkd.outputs import EncoderSpec
from mtkd.recipes import load_settings
from mtkd.teachers.teacher_ref import TeacherRef
from tasks.common.errors import UserError
from tasks.common.hub_loading import DEFAULT_ENCODER
from tasks.common.progress import say
from tasks.data.sources import open_data
from tasks.data.training_rows import training_rows
from tasks.data.unlabelled import UnlabelledRequest
from tasks.task import Task
from tasks.tokens.pruned_vocabulary import prune_vocabulary
from tasks.tokens.tokeniser import Tokeniser

# Learns from logits alone: the teacher's hidden states are those of both texts, if it reads them together.
_BI_ENCODER: dict[str, Any] = {
    "student.transformer.pairs": "bi-encoder",
    "student.transformer.init_layers": "first",
    "student.init_heads": "linear-probe",
    "terms.hidden.weight": 0,
}


def candidate_students(
    ref: TeacherRef, teacher: MultiTaskModel, tasks: list[Task], pruned: Tokeniser | None
) -> tuple[dict[str, tuple[str, dict[str, Any]]], dict[str, MultiTaskModel]]:
    """The students that are timed: name -> (recipe, settings), and name -> model with random weights.

    Args:
        pruned: the tokeniser of additional students with a pruned vocabulary; None = no such students.
    """
    recipes: dict[str, tuple[str, dict[str, Any]]] = {}
    models: dict[str, MultiTaskModel] = {}
    predicts_spans = any(task.type.predicts_spans for task in tasks)
    has_pairs = any(len(task.columns) == 2 for task in tasks)
    assert isinstance(ref.config, TransformerConfig), "`suggest` refuses other teachers"
    separately = has_pairs and not predicts_spans and can_be_bi_encoder(ref.config)
    embedding_size = teacher.encoder.embeddings.weight.shape[1]
    default_tokeniser = Tokeniser.load(locate(DEFAULT_ENCODER))
    for name, recipe, changes in _shapes(ref.config.spec, embedding_size, separately=separately):
        if not _can_be_trained(recipe, changes, ref, tasks):
            continue
        tokeniser = default_tokeniser if recipe == "pretrained" else teacher.tokeniser
        student = _random_student(recipe, changes, ref, tokeniser, tasks)
        recipes[name], models[name] = (recipe, changes), student
        if pruned and recipe in ("static", "mkd-lstm"):
            pruned_name = f"{name}, {pruned.vocab_size:,} tokens"
            recipes[pruned_name] = (recipe, {**changes, "student.vocabulary": "pruned"})
            models[pruned_name] = _random_student(recipe, changes, ref, pruned, tasks)
    return recipes, models


def _shapes(
    teacher: EncoderSpec, embedding_size: int, *, separately: bool
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each student as (name, recipe, settings that differ from the recipe), in order of expected scores.

    Args:
        embedding_size: the width of the teacher's word embeddings.
        separately: whether one and two layers read the texts of a pair separately. Read as one sequence,
            pairs are too hard for them (docs/results.md).
    """
    larger = exceeds_default_encoder(teacher)
    for layers in range(min(6, teacher.layers - 1), 0, -1):
        # On SST-2, six layers of the default encoder scored more than three of a larger teacher, and three
        # layers about as much (docs/results.md).
        if larger and layers in (3, 2):
            of_default = 6 if layers == 3 else 3
            sizes = {"student.transformer.layers": of_default, "student.transformer.init_layers": "uniform"}
            yield f"{DEFAULT_ENCODER}, {of_default} layers", "pretrained", sizes
        few = _BI_ENCODER if separately and layers <= 2 else {}
        yield (
            f"{layers} of {teacher.layers} layers",
            "layerwise-3",
            {"student.transformer.layers": layers, **few},
        )
    yield "static", "static", dict(width_settings(StaticSettings(), teacher))
    yield "BiLSTM, 256 units", "mkd-lstm", {}
    for units in (128, 64):
        sizes = {"embedding_size": embedding_size, "projection_size": 2 * units, "hidden_size": units}
        sets = {f"student.bilstm.{name}": size for name, size in (sizes | {"output_size": 4 * units}).items()}
        yield f"BiLSTM, {units} units", "mkd-lstm", {"student.bilstm.embeddings": "teacher", **sets}
    for layers, head_size in ((4, 26), (2, 16)):  # TinyBERT's head size, and a smaller one
        width = head_size * teacher.heads
        if width < teacher.hidden_size:
            sizes = {"layers": layers, "hidden_size": width, "intermediate_size": 4 * width}
            sizes["heads"] = teacher.heads
            sets = {f"student.transformer.{name}": size for name, size in sizes.items()}
            yield f"{layers} layers of {width}", "tinybert-4", {**sets, "student.transformer.init": "random"}


def _can_be_trained(recipe: str, changes: Mapping[str, Any], ref: TeacherRef, tasks: list[Task]) -> bool:
    """False if a student does not suit the teacher or the tasks, such as one without a vector per token."""
    try:
        validate_run(load_settings(recipe, "distill", changes), ref, tasks)
    except UserError:
        return False
    return True


def _random_student(
    recipe: str, changes: Mapping[str, Any], teacher: TeacherRef, tokeniser: Tokeniser, tasks: list[Task]
) -> MultiTaskModel:
    """The student of a recipe with random weights."""
    student_settings = load_settings(recipe, "distill", changes).student
    encoder = encoder_class(student_settings.kind)
    config = encoder.config_from_settings(student_settings, teacher.init_spec, tokeniser.vocab_size)
    return MultiTaskModel(encoder(config), tasks, tokeniser, ModelInfo(8, student_settings.head_hidden_size))


def pruned_tokeniser(
    tokeniser: Tokeniser, tasks: list[Task], data: Any, unlabelled: UnlabelledRequest | None
) -> Tokeniser | None:
    """The tokeniser, pruned to the tokens of the training rows; None, with a message, if it cannot be."""
    source = open_data(data)
    unlabelled = unlabelled or UnlabelledRequest()
    trained = trainable_tasks(tasks)
    unlabelled.check(trained)
    texts: list[Any] = []
    for task in trained:
        texts += unlabelled.append(source, task, training_rows(source, task, unlabelled))[0].texts
    try:
        return prune_vocabulary(tokeniser, texts, 60_000)[0]
    except UserError as error:
        say(f"no students with a pruned vocabulary: {error.problem}")
        return None
